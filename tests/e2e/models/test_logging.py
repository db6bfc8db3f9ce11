"""Lines that a model writes with ``pb_utils.Logger``: levels, places, and what is filtered."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.laboratory import laboratory, write_laboratory
from tests.support.log_lines import lines_with
from tests.support.repositories import identity_config, write_model
from tests.support.server import serving

TALKING = """
logger = pb_utils.Logger
logger.log_info("at import")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        logger.log_warn("while completing")
        return config

    def initialize(self, args):
        self.logger = pb_utils.Logger
        self.logger.log_info("in initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse() for _ in requests]

    def finalize(self):
        self.logger.log_error("in finalize")
"""
EVERY_LEVEL = """
Logger = pb_utils.Logger
Logger.log_info("{tag} info")
Logger.log_warn("{tag} warn")
Logger.log_error("{tag} error")
Logger.log_verbose("{tag} verbose")
Logger.log("{tag} default")
Logger.log("{tag} keyword", level=Logger.INFO)
Logger.log("{tag} Info", Logger.INFO)
Logger.log("{tag} Warning", Logger.WARNING)
Logger.log("{tag} Error", Logger.ERROR)
Logger.log("{tag} Verbose", Logger.VERBOSE)
return out(OUT=np.ones(1))
"""
LETTERS = {
    "info": "I",
    "warn": "W",
    "error": "E",
    "verbose": "I",
    "default": "I",
    "keyword": "I",
    "Info": "I",
    "Warning": "W",
    "Error": "E",
    "Verbose": "I",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("logging")
    write_laboratory(repository)
    write_model(repository, "talking", TALKING, identity_config())
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


@pytest.mark.spec("pb-G01")
def test_levels_and_order(server, lab):
    lab(EVERY_LEVEL.format(tag="levels:"))
    lines = lines_with(server, "levels:", "Error")
    found = [(text.split()[1], letter) for letter, _, _, text in lines]
    assert found == [(word, letter) for word, letter in LETTERS.items() if word.lower() != "verbose"]


@pytest.mark.spec("pb-G01")
def test_place_is_the_callers(server, lab):
    lab(
        "\npb_utils.Logger.log_info('place: one')\n\n\npb_utils.Logger.log_error('place: two')\nreturn out(OUT=np.ones(1))"
    )
    places = [place for _, _, place, _ in lines_with(server, "place:", "two")]
    assert places == ["laboratory_0_0/<laboratory>:3", "laboratory_0_0/<laboratory>:6"]
    (line,) = re.findall(r'[^\n]*"at import"', server.output)
    assert " talking_0/model.py:5] " in line


@pytest.mark.spec("pb-G01")
@pytest.mark.parametrize("flag", ["--log-verbose=1"])
def test_verbose_lines_on_demand(repository, tmp_path, flag):
    write_laboratory(tmp_path)
    with serving(tmp_path, flags=(flag,)) as server:
        laboratory(server)(EVERY_LEVEL.format(tag="verbose:"))
        lines = lines_with(server, "verbose:", "Verbose")
    assert [(text.split()[1], letter) for letter, _, _, text in lines] == list(LETTERS.items())


@pytest.mark.spec("pb-G01")
def test_levels_can_be_switched_off(tmp_path):
    write_laboratory(tmp_path)
    with serving(tmp_path, flags=("--log-warning=false", "--log-error=false")) as server:
        laboratory(server)(EVERY_LEVEL.format(tag="off:"))
        laboratory(server)("pb_utils.Logger.log_info('off: last')\nreturn out(OUT=np.ones(1))")
        lines = lines_with(server, "off:", "last")
    assert [text.split()[1] for _, _, _, text in lines] == ["info", "default", "keyword", "Info", "last"]


@pytest.mark.spec("pb-G01")
@pytest.mark.parametrize(
    "call",
    [
        "log(None)",
        "log(5)",
        "log('text', None)",
        "log('text', 1)",
        "log('text', 'INFO')",
        "log('text', level=None)",
        "log_info(None)",
        "log_warn(None)",
        "log_error(5)",
        "log_verbose(['text'])",
        "log_info()",
    ],
)
def test_what_is_no_text_or_no_level(lab, call):
    answer = lab(
        f"""
        try:
            pb_utils.Logger.{call}
        except TypeError as error:
            return out(OUT=text(error))
        """
    )
    assert answer["OUT"][0]


def test_every_phase_can_log(server, repository):
    for text in ("at import", "while completing", "in initialize"):
        assert len(re.findall(f'"{text}"', server.output)) == 1


def test_long_and_odd_lines(server, lab):
    lab(
        """
        pb_utils.Logger.log_info("odd: " + "x" * 200_000)
        pb_utils.Logger.log_info("odd: " + "\\u20ac" * 300_000)
        pb_utils.Logger.log_info("odd: two\\nlines, a \\"quote\\" and ä 😀")
        pb_utils.Logger.log_info("odd: \\udc80 surrogate")
        pb_utils.Logger.log_info(b"odd: bytes")
        pb_utils.Logger.log_info("odd: last")
        return out(OUT=np.ones(1))
        """
    )
    lines = [text for _, _, _, text in lines_with(server, "odd:", "last")]
    assert lines == [
        "odd: " + "x" * 200_000,
        "odd: " + "€" * (256 * 1024 - 5) + "... (37861 more characters)",
        'odd: two\nlines, a "quote" and ä 😀',
        "odd: \\udc80 surrogate",
        "odd: bytes",
        "odd: last",
    ]


def test_lines_from_threads_arrive_whole(server, lab):
    lab(
        """
        def talk(name):
            for number in range(50):
                pb_utils.Logger.log_info(f"thread: {name} {number}")
        threads = [threading.Thread(target=talk, args=[name]) for name in "abcd"]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        pb_utils.Logger.log_info("thread: z 0")
        return out(OUT=np.ones(1))
        """
    )
    lines = [text.split()[1:] for _, _, _, text in lines_with(server, "thread:", "z 0")]
    for name in "abcd":
        assert [int(number) for other, number in lines if other == name] == list(range(50))


def test_lines_appear_while_execute_runs(server, repository):
    """And not only with its answer: what hangs should say where."""
    gate = repository / "gate"
    code = f"""
    pb_utils.Logger.log_info("meanwhile: logged")
    while not os.path.exists({str(gate)!r}):
        time.sleep(0.002)
    return out(OUT=np.ones(1))
    """
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(laboratory(server), code)
        try:
            assert lines_with(server, "meanwhile:", "logged")
            assert not answer.done()
        finally:
            gate.touch()
        assert answer.result()["OUT"].tolist() == [1]
