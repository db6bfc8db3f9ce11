"""The page of a model in a browser: requests of every kind, answers, streams, and the programs that send the same
request."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.support.server import ServerProcess
from tests.tools.console.conftest import Console, Visit, console_flags

EXAMPLES = Path(__file__).parents[3] / "examples"
LAST_PROGRAM = "pybackend infer"
STRANGE = "<img src=x onerror=alert(1)>&quot;{{7*7}}"

ODD = f"""
import os
import numpy as np
import triton_python_backend_utils as pb_utils

STRANGE = {STRANGE!r}

class TritonPythonModel:
    def initialize(self, args):
        print(STRANGE)

    def execute(self, requests):
        responses = []
        for request in requests:
            word = pb_utils.get_input_tensor_by_name(request, "WORD").as_numpy().ravel()[0].decode("latin-1")
            if word == "die":
                os._exit(3)
            if word == "raise":
                raise RuntimeError(STRANGE)
            picture = np.linspace(0, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
            wave = np.sin(np.arange(100, dtype=np.float32))
            outputs = [pb_utils.Tensor("OUT", np.array([STRANGE + word], np.object_)), pb_utils.Tensor("PICTURE", picture), pb_utils.Tensor("WAVE", wave)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
ODD_CONFIG = """
backend: "python"
input [ { name: "WORD", data_type: TYPE_STRING, dims: [ 1 ] }, { name: "MORE", data_type: TYPE_FP32, dims: [ 3 ], optional: true } ]
output [ { name: "OUT", data_type: TYPE_STRING, dims: [ 1 ] }, { name: "PICTURE", data_type: TYPE_FP32, dims: [ 32, 32 ] },
  { name: "WAVE", data_type: TYPE_FP32, dims: [ 100 ], label_filename: "labels.txt" } ]
model_warmup [ { name: "a word", batch_size: 1, inputs { key: "WORD" value { data_type: TYPE_STRING dims: 1 zero_data: true } } },
  { name: "a word", batch_size: 0, inputs { key: "WORD" value { data_type: TYPE_STRING dims: 1 input_data_file: "word" } } } ]
"""
FLOOD = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().ravel()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FLOOD_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "NUMBER", data_type: TYPE_INT32, dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for example in ("add_sub", "image_pipeline", "sequence", "string_upper", "decoupled"):
        shutil.copytree(EXAMPLES / example / "model_repository", models, dirs_exist_ok=True)
    for name, code, config in (("odd", ODD, ODD_CONFIG), ("flood", FLOOD, FLOOD_CONFIG)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(code)
        (models / name / "config.pbtxt").write_text(config)
    (models / "odd" / "labels.txt").write_text(f"{STRANGE}\n" * 100)
    (models / "odd" / "warmup").mkdir()
    (models / "odd" / "warmup" / "word").write_bytes(b"\1\0\0\0x")
    found = ServerProcess([models])
    found.wait_ready()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def console(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    found = Console(tmp_path_factory.mktemp("console"), *console_flags(server))
    yield found
    assert found.stop() == 0
    assert "Traceback" not in found.output


def form(seen: Visit, model: str) -> Any:
    page = seen.open(f"/model?name={model}&version=1")
    page.get_by_role("button", name="Send").wait_for()
    return page


def programs(page: Any) -> dict[str, str]:
    """The programs that the page shows, by title."""
    page.get_by_role("button", name="Show as code").click()
    code = page.get_by_label("The same request as code")
    found = {}
    code.get_by_role("tab", name=LAST_PROGRAM).wait_for()  # all() waits for none
    for tab in code.get_by_role("tab").all():
        tab.click()
        title = tab.inner_text()
        found[title] = code.get_by_role("tabpanel", name=title).locator("pre").inner_text()
    return found


def ran(title: str, text: str, folder: Path) -> str:
    """What a program prints."""
    environment_path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    if title.startswith("Python"):
        command = [sys.executable, "-W", "error", "-c", text]
    else:
        command = ["/bin/bash", "-c", text.replace("pybackend infer", f"{sys.executable} -m pybackend infer")]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={"PATH": environment_path}
    )
    assert done.returncode == 0, f"{title}:\n{text}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_picture_is_classified_in_the_browser(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    from PIL import Image

    picture = np.full((200, 320, 3), (20, 30, 60), np.uint8)
    picture[80:120, 250:290] = (250, 220, 120)
    Image.fromarray(picture).save(tmp_path / "spot.png")
    page = form(visit(console), "find_spot")
    page.locator("input[type=file]").set_input_files(tmp_path / "spot.png")
    page.get_by_alt_text("Preview of spot.png").wait_for()
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output ANSWER").get_by_text("right: ").wait_for()


def test_the_programs_send_the_same_request(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    page = form(visit(console), "add_sub")
    page.get_by_label("Value of INPUT0").fill("[1, 2, 3, 4.5]")
    page.get_by_label("Value of INPUT1").fill("[10, 20, 30, 40]")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUTPUT0").get_by_text("11  22  33  44.5").wait_for()
    for title, text in programs(page).items():
        assert "44.5" in ran(title, text, tmp_path), title


def test_the_programs_of_a_sequence_and_of_texts(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    seen = visit(console)
    page = form(seen, "accumulate")
    page.get_by_label("Value of VALUE").fill("7")
    page.get_by_role("checkbox", name="The request ends its sequence").click()
    found = programs(page)
    assert found.pop("generate") == "# generate has no sequences: see curl."
    for title, text in found.items():
        assert "7" in ran(title, text, tmp_path), title
    page = form(seen, "string_upper")
    assert page.get_by_role("textbox").first.input_value() == ""
    word = 'it\'s $HOME "quoted" `x`'
    page.get_by_role("textbox").first.fill(word)
    for title, text in programs(page).items():
        assert "IT'S $HOME" in ran(title, text, tmp_path).replace("\\", ""), title


def test_the_programs_of_a_stream(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    page = form(visit(console), "flood")
    page.get_by_label("Value of COUNT").fill("3")
    for title, text in programs(page).items():
        if not text.startswith("#"):
            assert "2" in ran(title, text, tmp_path), title


def test_files_of_a_program_are_offered(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    page = form(visit(console), "spot_net")
    page.get_by_role("button", name="Random").click()
    found = programs(page)
    for name in ("PIXELS.npy", "request.bin"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / name)
    for title, text in found.items():
        assert "SCORES" in ran(title, text, tmp_path), title


def test_a_file_of_bytes_is_a_part_of_a_form(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"meow\xff\r\n--\0")
    page = form(visit(console), "odd")
    page.get_by_label("How WORD is given").get_by_text("File").click()
    page.get_by_label("Input WORD").locator("input[type=file]").set_input_files(tmp_path / "cat.jpg")
    page.get_by_text("cat.jpg, 10 bytes").wait_for()
    page.get_by_label("How MORE is given").get_by_text("Value").click()
    page.get_by_label("Value of MORE").fill("[1, 2, 3]")
    page.get_by_text("Id and parameters").click()
    page.get_by_label("Id", exact=True).fill("17")
    page.get_by_label("Parameters, a JSON object").fill('{"style": "5", "top": 4}')
    found = programs(page)
    assert "-F WORD=@WORD.bin" in found["generate"]
    for name in ("WORD.bin", "request.bin"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        download.value.save_as(tmp_path / name)
    for title, text in found.items():
        said = ran(title, text, tmp_path)
        assert any(word in said for word in ("meow\xff", r"meow\u00ff", r"meow\xc3\xbf")), title


def test_classes_have_their_labels(console: Console, visit: Callable[..., Visit]) -> None:
    page = form(visit(console), "spot_net")
    page.get_by_role("button", name="Random").click()
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output SCORES").locator(".bar-row").nth(2).wait_for()
    assert page.get_by_label("Output SCORES").locator(".bar-row").count() == 3


def test_outputs_are_text_pictures_and_plots_and_never_html(console: Console, visit: Callable[..., Visit]) -> None:
    page = form(visit(console), "odd")
    page.get_by_label("Value of WORD").fill("</pre><script>alert(2)</script>")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUT").get_by_text(STRANGE).wait_for()
    assert "<script>alert(2)" in page.get_by_label("Output OUT").inner_text()
    page.get_by_label("Output PICTURE").locator("img").wait_for()
    page.get_by_label("Output WAVE").locator(".bar-row").nth(2).wait_for()
    assert STRANGE in page.get_by_label("Output WAVE").inner_text(), "the label of a class"
    page.get_by_label("Best classes of WAVE").fill("0")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output WAVE").locator("canvas").wait_for()
    page.get_by_role("tab", name="Log").click()
    page.get_by_label("Log", exact=True).get_by_text(STRANGE).wait_for()
    assert not page.locator("img[src=x]").count()


def test_errors_and_deaths_of_a_model_are_shown_and_the_page_goes_on(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    page = form(visit(console), "odd")
    page.get_by_label("Value of WORD").fill("raise")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Answer").get_by_text(STRANGE).first.wait_for()
    page.get_by_label("Value of WORD").fill("die")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Answer").get_by_text("exit").first.wait_for()
    server.wait_until("/v2/models/odd/ready", 200)
    page.get_by_label("Value of WORD").fill("again")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUT").get_by_text("again").wait_for()


def test_mistakes_in_the_form_are_sentences(console: Console, visit: Callable[..., Visit], tmp_path: Path) -> None:
    page = form(visit(console), "add_sub")
    answer = page.get_by_label("Answer")
    page.get_by_label("Value of INPUT0").fill("[1, 2")
    page.get_by_role("button", name="Send").click()
    answer.get_by_text("input 'INPUT0' wants FP32 [4]").wait_for()
    page.get_by_label("Value of INPUT0").fill("@/etc/passwd")
    page.get_by_role("button", name="Send").click()
    answer.get_by_text("is not JSON").wait_for()
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    page.get_by_label("How INPUT0 is given").get_by_text("File").click()
    page.get_by_label("Input INPUT0").locator("input[type=file]").set_input_files(tmp_path / "pickled.npy")
    page.get_by_text("pickled.npy was refused: ").wait_for()
    assert "cannot be read as an array" in page.get_by_label("Input INPUT0").inner_text()
    np.save(tmp_path / "short.npy", np.zeros(3, np.float32))
    page.get_by_label("Input INPUT0").locator("input[type=file]").set_input_files(tmp_path / "short.npy")
    page.get_by_text("short.npy was refused: input 'INPUT0' wants FP32 [4]").wait_for()
    page.get_by_role("button", name="Send").click()
    answer.get_by_text("needs a file").wait_for()


def test_files_that_would_fill_the_memory_are_refused_before_they_are_decoded(
    console: Console, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    page = form(visit(console), "add_sub")
    answer, field = page.get_by_label("Answer"), page.get_by_label("Input INPUT0")
    page.get_by_label("Value of INPUT0").fill("[" * 100_000)
    page.get_by_role("button", name="Send").click()
    answer.get_by_text("it is nested too deeply").wait_for()
    page.get_by_label("How INPUT0 is given").get_by_text("File").click()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
    (tmp_path / "long.json").write_bytes(b"[%b1]" % (b"1," * (5 << 20)))
    for name, text in (("huge.npy", "bytes of its elements are missing"), ("long.json", "may have 8 MB at most here")):
        field.locator("input[type=file]").set_input_files(tmp_path / name)
        page.get_by_text(f"{name}, ").wait_for()
        page.get_by_role("button", name="Send").click()
        answer.get_by_text(text).wait_for()
    from PIL import Image

    Image.new("1", (1, 1_000_000)).save(tmp_path / "tall.png")
    field.locator("input[type=file]").set_input_files(tmp_path / "tall.png")
    page.get_by_text("the picture has 1 x 1000000 pixels: a side may have 20,000").wait_for()


def test_a_long_stream_stays_small(console: Console, visit: Callable[..., Visit]) -> None:
    page = form(visit(console), "flood")
    page.get_by_label("Value of COUNT").fill("50000")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("50,000 responses, the last 200 are shown. The stream has ended").wait_for()
    lines = page.get_by_label("Answer").locator("pre").last.inner_text().splitlines()
    assert (len(lines), lines[-1]) == (200, "NUMBER: 49999")


def test_large_bodies_are_refused_before_they_are_read(console: Console) -> None:
    connection = http.client.HTTPConnection(urlsplit(console.url).netloc, timeout=60)
    connection.request("GET", console.links[-1].removeprefix(console.url))
    reply = connection.getresponse()
    reply.read()
    cookie = reply.getheader("set-cookie", "").partition(";")[0]
    connection.putrequest("POST", "/_nicegui/client/x/upload/1")
    connection.putheader("Cookie", cookie)
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    reply = connection.getresponse()
    assert (reply.status, b"64 MB" in reply.read()) == (413, True)
    connection.close()


def test_a_file_of_a_gigabyte_is_refused_by_a_sentence(
    console: Console, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    with (tmp_path / "large.npy").open("wb") as file:
        file.truncate(1 << 30)
    page = form(visit(console), "add_sub")
    page.get_by_label("How INPUT0 is given").get_by_text("File").click()
    page.get_by_label("Input INPUT0").locator("input[type=file]").set_input_files(tmp_path / "large.npy")
    page.locator(".q-notification").get_by_text("A file may have 64 MB at most here").wait_for()


def test_requests_are_kept_sent_again_and_removed(console: Console, visit: Callable[..., Visit]) -> None:
    seen = visit(console)
    page = form(seen, "add_sub")
    page.get_by_label("Value of INPUT0").fill("[1, 2, 3, 4]")
    page.get_by_label("Value of INPUT1").fill("[10, 20, 30, 40]")
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Replay").wait_for()
    page = form(seen, "string_upper")
    assert not page.get_by_role("button", name="Replay").count(), "another model"
    page = form(seen, "add_sub")
    page.get_by_role("button", name="Replay").click()
    page.get_by_label("Output OUTPUT0").get_by_text("11  22  33  44").wait_for()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Replay").wait_for(state="hidden")


def test_samples_of_warm_up_are_sent(console: Console, visit: Callable[..., Visit]) -> None:
    page = form(visit(console), "odd")
    of_one_name = page.get_by_role("button", name="Replay sample a word")
    of_one_name.nth(0).click()
    page.get_by_label("Output OUT").get_by_text(STRANGE).wait_for()
    of_one_name.nth(1).click()
    page.locator(".q-notification").get_by_text("warmup/word: choose that file in the form").wait_for()


def test_a_model_that_is_killed_while_somebody_looks_comes_back(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    page = form(visit(console), "odd")
    restarts = page.locator("dl.figures div").filter(has_text="Restarts").locator("dd")
    restarts.filter(has_text="-").wait_for(state="hidden")
    before = int(restarts.inner_text())
    pid = next(row["pid"] for row in server.diagnostics("processes").json["processes"] if row["name"] == "odd_0")
    os.kill(pid, signal.SIGKILL)
    restarts.filter(has_text=str(before + 1)).wait_for()
    page.get_by_label("Value of WORD").fill("again")
    server.wait_until("/v2/models/odd/ready", 200)
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUT").get_by_text("again").wait_for()


def test_an_ensemble_is_drawn_with_the_time_of_each_step(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    seen = visit(console)
    page = form(seen, "find_spot")
    page.get_by_role("tab", name="Figures").click()
    steps = page.locator(".step")
    steps.nth(2).wait_for()
    assert [each.get_by_role("link").inner_text() for each in steps.all()] == [
        "prepare_picture",
        "spot_net",
        "name_spot",
    ]
    assert "PIXELS from pixels" in steps.nth(1).inner_text()
    page.get_by_role("img", name="Mean time of each step in ms").locator("canvas").wait_for()
    assert not page.get_by_role("img", name="Memory of its processes in MB").is_visible()
    figures = page.locator("dl.figures")
    assert figures.locator("dt").all_inner_texts() == ["Steps ready", "Requests/s", "Mean time", "Failed"]
    figures.get_by_text("3/3").wait_for()
    steps.nth(1).get_by_role("link").click()
    page.get_by_role("heading", name="spot_net").wait_for()
    page = seen.open("/")
    page.get_by_text("ensemble: its steps have instances, times and memory").wait_for()


def test_figures_and_configuration(console: Console, visit: Callable[..., Visit]) -> None:
    page = form(visit(console), "spot_net")
    page.get_by_role("tab", name="Figures").click()
    page.get_by_role("img", name="Requests per second").locator("canvas").wait_for()
    page.get_by_role("tab", name="Configuration").click()
    page.get_by_text("spot_net/config.pbtxt").wait_for()
    page.get_by_text("max_batch_size: 16").nth(1).wait_for()  # in force, and in the file
    page.get_by_text("standard", exact=True).wait_for()
    page.get_by_text(sys.executable).wait_for()
    page.get_by_role("button", name="packages").click()
    page.get_by_text(f"numpy=={np.__version__}").wait_for()
