"""What the command line accepts, and what it says to what it does not."""

import re
from math import inf
from pathlib import Path

import pytest

from pybackend.cli import flags
from pybackend.cli.command_parser import UsageError
from pybackend.errors import ServerError
from pybackend.settings import CacheSettings, DebugSettings, SandboxSettings, Settings
from tests.support.command_line import serve_settings

WRONG = {
    "an unknown flag": (("serve", "--x", "models"), 'Bad option: "--x". `pybackend serve --help` lists the flags'),
    "an unknown flag with a value": (("serve", "--x=1", "models"), 'Bad option: "--x".'),
    "an unknown flag before the command": (("--x", "serve"), 'Bad option: "--x".'),
    "a misspelt flag": (("serve", "--http-prot=1"), 'Bad option: "--http-prot"'),
    "a prefix of several flags": (("serve", "--http=1"), 'Bad option: "--http". could match --http-'),
    "a stray argument": (("serve", "models", "more"), "Unexpected argument: more"),
    "a misspelt command": (("stauts",), "Unexpected argument: stauts"),
    "a command of several words": (("export_config",), "Unexpected argument: export_config"),
    "no command": (("models",), "Unexpected argument: models"),
    "a bool that is none": (
        ("serve", "--exit-on-error=maybe"),
        'Bad option: "--exit-on-error". invalid value for bool option: maybe',
    ),
    "a number that is none": (("serve", "--http-port=web"), 'Bad option: "--http-port". Invalid option value'),
    "a number with a fraction": (
        ("serve", "--exit-timeout-secs", "1.5"),
        'Bad option: "--exit-timeout-secs". Invalid option value',
    ),
    "a port too large": (
        ("serve", "--metrics-port=65536"),
        'Bad option: "--metrics-port". Provided option value is out of bound',
    ),
    "a number beyond 64 bits": (
        ("serve", f"--model-memory-limit={2**64}"),
        f'Bad option: "--model-memory-limit". Provided option value is out of bound. Got {2**64}',
    ),
    "a size with a unit": (
        ("serve", "--http-max-input-size=64MB"),
        'Bad option: "--http-max-input-size". Invalid option value. Got 64MB, expected a whole number without '
        "a unit: 64 MiB are 67108864",
    ),
    "a flag without its value": (("serve", "--http-port"), 'Bad option: "--http-port"'),
    "a control mode that is none": (("serve", "--model-control-mode=some"), 'Bad option: "--model-control-mode"'),
    "a configuration's name that is a path": (
        ("serve", "--model-config-name=a/b"),
        'Bad option: "--model-config-name"',
    ),
    "a setting of metrics without a value": (
        ("serve", "--metrics-config=summary_latencies"),
        "Bad option: \"--metrics-config\". --metrics-config option format is '<setting>=<value>'",
    ),
    "quantiles that are none": (("serve", "--metrics-config=summary_quantiles=0.5"), 'Bad option: "--metrics-config"'),
    "a restricted group that is none": (
        ("serve", "--http-restricted-api=health,all:k=v"),
        "Bad option: \"--http-restricted-api\". unknown restricted api 'all': it is one of health, metadata, inference, shared-memory,",
    ),
    "a restricted protocol that is none": (
        ("serve", "--grpc-restricted-protocol=infer:k=v"),
        'Bad option: "--grpc-restricted-protocol"',
    ),
    "a restriction without a value": (
        ("serve", "--http-restricted-api=health:key"),
        "Bad option: \"--http-restricted-api\". --http-restricted-api option format is '<api>,<api>,...:<header>=<value>'",
    ),
    "a restriction without a group": (
        ("serve", "--http-restricted-api=:key=value"),
        'Bad option: "--http-restricted-api". --http-restricted-api option format is',
    ),
    "a restriction by a header that none is": (
        ("serve", "--http-restricted-api=health:a header=value"),
        'Bad option: "--http-restricted-api"',
    ),
    "a restriction by a value that cannot be sent": (
        ("serve", "--http-restricted-api=health:key=secret "),
        'Bad option: "--http-restricted-api"',
    ),
    "a pattern that is none": (
        ("serve", "--http-header-forward-pattern=(a"),
        'Bad option: "--http-header-forward-pattern"',
    ),
    "a pattern that RE2 lacks": (
        ("serve", "--grpc-header-forward-pattern=(?=a)"),
        'Bad option: "--grpc-header-forward-pattern"',
    ),
    "an origin with a slash": (
        ("serve", "--http-cors-origin=https://example.org/"),
        'Bad option: "--http-cors-origin"',
    ),
    "an origin that is none": (("serve", "--http-cors-origin=example.org"), 'Bad option: "--http-cors-origin"'),
    "the origin of pages from disk": (
        ("serve", "--http-cors-origin=null"),
        'Bad option: "--http-cors-origin". Got null, ',
    ),
    "an exemption that is none": (("serve", "--api-key-exempt=metrics,infer"), 'Bad option: "--api-key-exempt"'),
    "a verbosity that is none": (
        ("serve", "--log-verbose=much"),
        'Bad option: "--log-verbose". invalid value for bool option: much',
    ),
    "a trace setting without a value": (
        ("serve", "--trace-config=triton,file"),
        "Bad option: \"--trace-config\". --trace-config option format is '<mode>,<setting>=<value>' or "
        "'<setting>=<value>'",
    ),
    "a trace mode that is none": (("serve", "--trace-config=jaeger,url=x"), 'Bad option: "--trace-config"'),
    "a trace setting that is none": (("serve", "--trace-config=triton,url=x"), 'Bad option: "--trace-config"'),
    "a trace level that is none": (("serve", "--trace-config=level=MIN"), 'Bad option: "--trace-config"'),
    "a log format that is none": (
        ("serve", "--log-format=xml"),
        'Bad option: "--log-format". invalid argument for --log_format, got: xml',
    ),
}

CONTRADICTIONS = {
    "no repository": (("serve",), "error: creating server: Invalid argument - --model-repository must be specified"),
    "an input limit of nothing": (
        ("serve", "models", "--http-max-input-size=0"),
        "Error: --http-max-input-size must be greater than 0.",
    ),
    "a group restricted twice": (
        ("serve", "models", "--http-restricted-api=health,trace:a=b", "--http-restricted-api=logging,trace:c=d"),
        "Error: restricted api 'trace' can not be specified in multiple config groups: name it in one flag only.",
    ),
    "a protocol restricted twice": (
        ("serve", "models", "--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=health:c=d"),
        "Error: restricted protocol 'health' can not be specified in multiple config groups",
    ),
    "exemptions without keys": (
        ("serve", "models", "--api-key-exempt=health"),
        "Error: --api-key-exempt needs --api-key-file, which holds the keys of all other calls.",
    ),
    "credentials for nobody": (
        ("serve", "models", "--http-cors-credentials"),
        "Error: --http-cors-credentials needs --http-cors-origin, which names the pages.",
    ),
    "credentials for everybody": (
        ("serve", "models", "--http-cors-credentials", "--http-cors-origin=*"),
        "Error: --http-cors-credentials with --http-cors-origin=* would let every web page act for the user",
    ),
    "a negative input limit": (
        ("serve", "models", "--http-max-input-size=-1"),
        "Error: --http-max-input-size must be greater than 0.",
    ),
    "a model to load without control of models": (
        ("serve", "models", "--load-model=a"),
        "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
    ),
    "all models and one of them": (
        ("serve", "models", "--model-control-mode=explicit", "--load-model=*", "--load-model=a"),
        "error: Wildcard model name '*' must be the ONLY startup model if specified at all.",
    ),
    "no traces and some": (
        ("serve", "models", "--trace-config=level=OFF", "--trace-config=level=TENSORS"),
        "Error: Expect only one trace level 'OFF' is specified: leave it out, or the others.",
    ),
    "how to debug without what": (
        ("serve", "models", "--debug-wait"),
        "Error: --debug-port and --debug-wait need --debug=MODEL, which says what to debug.",
    ),
    "where to debug without what": (
        ("serve", "models", "--debug-port=0"),
        "Error: --debug-port and --debug-wait need --debug=MODEL, which says what to debug.",
    ),
    "one port for two services": (
        ("serve", "models", "--http-port=8000", "--metrics-port=8000"),
        "error: The server cannot listen to HTTP requests and Metrics requests at the same address and port 0.0.0.0:8000",
    ),
    "one Unix-domain socket for two services": (
        ("serve", "models", "--http-address=unix:/run/x", "--http-port=1", "--grpc-address=unix:/run/x"),
        "error: The server cannot listen to HTTP requests and gRPC requests at the same address unix:/run/x",
    ),
    "one port for two services at an address": (
        ("serve", "models", "--http-address=127.0.0.1", "--http-port=8000", "--metrics-port=8000"),
        "error: The server cannot listen to HTTP requests and Metrics requests at the same address and port 127.0.0.1:8000",
    ),
}


@pytest.mark.spec("srv-P02")
@pytest.mark.parametrize(("arguments", "text"), WRONG.values(), ids=WRONG)
def test_usage_errors(pybackend, arguments, text, snapshot):
    """Usage, then the reason as the last line, on stderr; status 1."""
    done = pybackend(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("usage: pybackend")
    assert done.stderr.splitlines()[-1].startswith(text)
    assert done.stderr.splitlines()[-1] == snapshot


@pytest.mark.spec("srv-P02")
@pytest.mark.parametrize(("arguments", "text"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_settings_that_contradict_each_other(pybackend, arguments, text, snapshot):
    done = pybackend(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(text)
    assert done.stderr.splitlines() == [snapshot]


def test_no_arguments_at_all(pybackend):
    done = pybackend()
    assert done.returncode == 1
    assert done.stdout.startswith("usage: pybackend")


def test_help_lists_every_flag(pybackend):
    done = pybackend("serve", "--help")
    assert done.returncode == 0
    rows = {name for flag in flags.FLAGS for name in flag.names if name.startswith("--")}
    assert set(re.findall(r"(?:^  |, )(--[a-z0-9-]+)", done.stdout, re.MULTILINE)) == {"--help", *rows}
    assert set(FLAGS) | set(UNUSED) < rows


def test_what_the_server_does_without_flags_is_what_its_settings_do(monkeypatch):
    """The default of a flag and that of its field are the same, where both are written."""
    monkeypatch.delenv("PYBACKEND_FRONT_ENDS", raising=False)  # the form in which the tests run
    assert serve_settings(["serve", "models"]) == Settings(repositories=(Path("models").absolute(),))


@pytest.mark.parametrize("arguments", [("--version",), ("-V",), ("version",), ("serve", "--version")])
def test_version(pybackend, arguments):
    done = pybackend(*arguments)
    assert done.returncode == 0
    assert re.fullmatch(r"pybackend \d+\.\d+\.\d+\S*\n", done.stdout)


TLS = ("use-ssl", "use-ssl-mutual", "server-cert", "server-key", "root-cert")
"""They need each other; tests/e2e/http/test_tls.py uses them."""

# Each flag, what it is when it is not given, a value for it, and what that becomes in the settings.
FLAGS = {
    "--model-repository": (
        "repositories",
        (Path("models").absolute(),),
        "more",
        (Path("models").absolute(), Path("more").absolute()),
    ),
    "--repository-cache-directory": (
        "cloud_repositories.cache_directory",
        None,
        "cache",
        Path("cache").absolute(),
    ),
    "--model-control-mode": ("models.control", "none", "EXPLICIT", "explicit"),
    "--repository-poll-secs": ("models.poll_s", 15, "0", None),
    "--model-load-retry-count": ("models.load_retry_count", 0, "3", 3),
    "--model-namespacing": ("model_namespacing", False, "true", True),
    "--model-config-name": ("models.config_name", "", "large.pbtxt", "large"),
    "--disable-auto-complete-config": ("models.auto_complete", True, "true", False),
    "--exit-on-error": ("exit_on_error", True, "false", False),
    "--validate-outputs": ("models.validate_outputs", False, "true", True),
    "--strict-readiness": ("strict_readiness", True, "false", False),
    "--model-load-thread-count": ("models.load_count", 4, "7", 7),
    "--no-zygote": ("zygotes", True, "true", False),
    "--no-fast-paths": ("fast_paths", True, "true", False),
    "--model-memory-limit": ("models.memory_limit_bytes", None, "1048576", 1048576),
    "--tensor-memory-limit": ("tensor_memory_limit_bytes", None, "1048576", 1048576),
    "--allow-client-shm": ("client_shared_memory", False, "true", True),
    "--allow-http": ("http.enabled", True, "off", False),
    "--http-address": ("http.address", "0.0.0.0", "127.0.0.2", "127.0.0.2"),
    "--http-port": ("http.port", 8000, "8888", 8888),
    "--reuse-http-port": ("http.reuse_port", False, "true", True),
    "--http-max-input-size": ("http.max_input_size_bytes", 67108864, "1", 1),
    "--http-memory-limit": ("http.memory_limit_bytes", None, "1048576", 1048576),
    "--allow-grpc": ("grpc.enabled", True, "off", False),
    "--grpc-address": ("grpc.address", "0.0.0.0", "127.0.0.2", "127.0.0.2"),
    "--grpc-port": ("grpc.port", 8001, "8888", 8888),
    "--reuse-grpc-port": ("grpc.reuse_port", False, "true", True),
    "--grpc-keepalive-time": ("grpc.keepalive.time_s", 7200, "2147483647", inf),
    "--grpc-keepalive-timeout": ("grpc.keepalive.timeout_s", 20, "1500", 1.5),
    "--grpc-keepalive-permit-without-calls": ("grpc.keepalive.permit_without_calls", False, "1", True),
    "--grpc-http2-max-pings-without-data": ("grpc.keepalive.max_pings_without_data", 2, "0", 0),
    "--grpc-http2-min-recv-ping-interval-without-data": ("grpc.keepalive.min_ping_interval_s", 300, "10", 0.01),
    "--grpc-http2-max-ping-strikes": ("grpc.keepalive.max_ping_strikes", 2, "0", 0),
    "--grpc-max-connection-age": ("grpc.keepalive.max_age_s", inf, "60000", 60),
    "--grpc-max-connection-age-grace": ("grpc.keepalive.max_age_grace_s", inf, "0", 0),
    "--grpc-infer-response-compression-level": ("grpc.compression_level", "none", "high", "high"),
    "--allow-metrics": ("http.metrics_enabled", True, "0", False),
    "--metrics-address": ("http.metrics_address", "0.0.0.0", "::1", "::1"),
    "--metrics-port": ("http.metrics_port", 8002, "0", 0),
    "--allow-cpu-metrics": ("metrics.cpu", True, "off", False),
    "--allow-gpu-metrics": ("metrics.gpu", True, "off", False),
    "--metrics-interval-ms": ("metrics.interval_s", 2, "500", 0.5),
    "--metrics-config": ("metrics.summary_latencies", False, "summary_latencies=true", True),
    "--id": ("server_id", "triton", "mine", "mine"),
    "--exit-timeout-secs": ("models.exit_timeout_s", 30, "0", 0),
    "--exit-keepalive-secs": ("exit_keepalive_s", 3, "0", 0),
    "--log-verbose": ("log.verbose_level", 0, "2", 2),
    "--log-info": ("log.info", True, "FALSE", False),
    "--log-warning": ("log.warning", True, "Off", False),
    "--log-error": ("log.error", True, "0", False),
    "--log-format": ("log.format", "default", "ISO8601", "ISO8601"),
    "--log-file": ("log.file", None, "x.log", Path("x.log").absolute()),
    "--log-access": ("log.access", False, "on", True),
    "--trace-config": ("trace.rate", 1000, "rate=5", 5),
    "--trace-file": ("trace.file", "", "./x.json", "./x.json"),
    "--trace-level": ("trace.levels", (), "TENSORS", ("TENSORS",)),
    "--trace-rate": ("trace.rate", 1000, "5", 5),
    "--trace-count": ("trace.count", -1, "5", 5),
    "--trace-log-frequency": ("trace.log_frequency", 0, "5", 5),
    "--backend-directory": (
        "backend_directory",
        Path("/opt/tritonserver/backends"),
        "backends",
        Path("backends").absolute(),
    ),
    "--backend-config": (
        "backend_settings",
        {},
        "onnxruntime,default-max-batch-size=8",
        {"onnxruntime": {"default-max-batch-size": "8"}},
    ),
    "--debug": ("debug.models", (), "m", ("m",)),
    "--host-policy": ("models.host_policies", {}, "cpu,cpu-cores=0", {"cpu": frozenset({0})}),
    "--rate-limit": ("resource_limits", None, "execution_count", {}),
    "--max-queued-bytes": ("max_queued_bytes", None, "5", 5),
    "--cache-config": ("cache", None, "local,size=7", CacheSettings("local", {"size": "7"})),
    "--environment-cache-directory": ("environments.cache_directory", None, "cache", Path("cache").absolute()),
    "--environment-cache-size": ("environments.cache_limit_bytes", None, "5", 5),
    "--allow-pack-at-load": ("environments.pack_at_load", False, "true", True),
    "--sandbox": ("sandbox.level", SandboxSettings().level, "strict", "strict"),
    "--sandbox-floor": ("sandbox.floor", "off", "standard", "standard"),
    "--allow-model-overrides": ("sandbox.overrides", False, "on", True),
    "--sandbox-required": ("sandbox.required", False, "on", True),
    "--response-cache-byte-size": ("cache", None, "7", CacheSettings("local", {"size": "7"})),
}
UNUSED = {
    "--http-thread-count": ("8", "none"),
    "--grpc-infer-thread-count": ("2", "1"),
    "--sagemaker-thread-count": ("8", "0"),
    "--vertex-ai-thread-count": ("8", "0"),
    "--grpc-infer-allocation-pool-size": ("8", "-1"),
    "--grpc-max-response-pool-size": ("100", "0"),
    "--buffer-manager-thread-count": ("0", "-1"),
    "--pinned-memory-pool-byte-size": ("268435456", "much"),
    "--cuda-memory-pool-byte-size": ("0:67108864", "67108864"),
    "--cuda-virtual-address-size": ("0:67108864", "0:"),
    "--min-supported-compute-capability": ("6.0", "six"),
    "--model-load-gpu-limit": ("0:0.8", "0:2"),
    "--enable-peer-access": ("false", "never"),
    "--cache-directory": ("/opt/caches", None),
    "--repoagent-directory": ("/opt/repoagents", None),
}


def setting(arguments, path):
    found = serve_settings(["serve", "models", *arguments])
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("flag", "path", "default", "value", "becomes"), [(flag, *row) for flag, row in FLAGS.items()])
def test_each_flag_and_its_default(flag, path, default, value, becomes):
    if default is not None:
        assert setting([], path) == default
    assert setting([f"{flag}={value}"], path) == becomes
    assert setting([flag, value], path) == becomes


@pytest.mark.parametrize(
    "flag", [flag for flag, row in FLAGS.items() if isinstance(row[1], bool) and flag != "--metrics-config"]
)
def test_booleans_in_every_spelling_and_alone(flag):
    path = FLAGS[flag][0]
    negated = flag.startswith(("--disable", "--no-"))
    for text in ("true", "TRUE", "True", "on", "1"):
        assert setting([f"{flag}={text}"], path) is not negated
    for text in ("false", "False", "off", "OFF", "0"):
        assert setting([f"{flag}={text}"], path) is negated
    assert setting([flag], path) is not negated


@pytest.mark.parametrize(("flag", "value", "wrong"), [(flag, *row) for flag, row in UNUSED.items()])
def test_flags_without_use_are_accepted_with_one_warning(flag, value, wrong):
    assert setting([], "warnings") == ()
    (warning,) = setting([f"{flag}={value}"], "warnings")
    assert warning.startswith(f"without effect in this server, and safe to leave out: {flag} (")
    if wrong is not None:
        with pytest.raises(UsageError, match=f'Bad option: "{flag}"'):
            serve_settings(["serve", "models", f"{flag}={wrong}"])


def test_one_warning_for_all_flags_without_use():
    (warning,) = setting([f"{flag}={value}" for flag, (value, _) in UNUSED.items()], "warnings")
    assert all(f"{flag} (" in warning for flag in UNUSED)


@pytest.mark.parametrize("flags", [["--strict-model-config"], ["--strict-model-config=TRUE"]], ids=str)
def test_the_older_name_of_a_flag(flags):
    assert setting(flags, "models.auto_complete") is False
    assert setting(["--strict-model-config=false"], "models.auto_complete") is True


def test_verbosity_is_a_number_or_a_bool():
    assert [setting([f"--log-verbose{text}"], "log.verbose_level") for text in ("", "=true", "=false", "=3")] == [
        1,
        1,
        0,
        3,
    ]


def test_settings_of_metrics():
    flags = ["--metrics-config=summary_latencies=TRUE", "--metrics-config=summary_quantiles=0.99:0.001,0.5:0.05"]
    found = setting([*flags, "--metrics-config=histogram_latencies=1"], "metrics")
    assert (found.summary_latencies, found.histogram_latencies, found.counter_latencies) == (True, True, True)
    assert found.summary_quantiles == (0.5, 0.99)
    mistyped = serve_settings(["serve", "models", "--metrics-config=summary_quantiles=0.99:0.0x1,0.5:7"])
    assert mistyped.metrics.summary_quantiles == (0.5, 0.99)
    assert mistyped.warnings == (
        "--metrics-config=summary_quantiles has errors that are no numbers from 0 to 1: 0.0x1, 7. They have no effect",
    )
    assert setting(["--metrics-config=counter_latencies=off"], "metrics.counter_latencies") is False


def test_gpu_models():
    assert [
        setting(flags, "models.gpu_models_on_cpu") for flags in ([], ["--gpu-models=refuse"], ["--gpu-models=cpu"])
    ] == [
        False,
        False,
        True,
    ]


def test_a_unique_prefix_is_enough():
    assert setting(["--exit-on"], "exit_on_error") is True
    assert setting(["--http-p=1"], "http.port") == 1


def test_repositories_add_up_in_order():
    arguments = ["--model-repository=b", "--model-store", "c"]
    assert setting(arguments, "repositories") == tuple(Path(name).absolute() for name in ("models", "b", "c"))


@pytest.mark.parametrize(
    ("names", "becomes"),
    [((), ()), (("a",), ("a",)), (("b", "a", "b"), ("b", "a")), (("*",), None), (("*", "*"), None)],
)
def test_models_to_load_at_start(names, becomes):
    flags = [f"--load-model={name}" for name in names]
    assert setting(["--model-control-mode=explicit", *flags], "models.startup_models") == becomes


def test_models_to_debug():
    flags = ["--debug=b", "--debug", "a", "--debug=b"]
    assert setting(flags, "debug") == DebugSettings(("b", "a"))
    assert setting([*flags, "--debug-wait", "--debug-port=0"], "debug") == DebugSettings(("b", "a"), 0, waits=True)


def test_without_control_all_models_are_loaded():
    assert setting([], "models.startup_models") is None


def test_metrics_follow_the_address_of_http():
    assert setting(["--http-address=127.0.0.9"], "http.metrics_address") == "127.0.0.9"
    assert setting(["--http-address=unix:/run/x"], "http.metrics_address") == "127.0.0.1"


def test_one_port_is_no_collision_at_two_addresses_or_when_free_ports_are_taken():
    assert (
        setting(["--http-address=127.0.0.1", "--metrics-address=127.0.0.2", "--metrics-port=8000"], "http.port") == 8000
    )
    assert setting(["--http-port=0", "--metrics-port=0"], "http.port") == 0
    assert setting(["--http-port=1", "--metrics-port=1", "--allow-metrics=false"], "http.port") == 1


def test_errors_carry_the_usage_apart_from_the_message(snapshot):
    with pytest.raises(UsageError) as caught:
        serve_settings(["serve", "--nonsense"])
    assert isinstance(caught.value, ServerError)
    assert str(caught.value) == snapshot
    assert caught.value.usage == "usage: pybackend serve [--FLAG[=VALUE]]... [REPOSITORY]\n"


def test_trace_config():
    arguments = [
        "--trace-rate=7",
        "--trace-count=8",
        "--trace-config=rate=5",
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TENSORS",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=opentelemetry,url=http://c:1/v1/traces",
        "--trace-config=opentelemetry,resource=a=b=c",
        "--trace-config=opentelemetry,bsp_max_queue_size=3",
    ]
    found = setting(arguments, "trace")
    assert (found.mode, found.levels, found.rate, found.count) == ("opentelemetry", ("TENSORS", "TIMESTAMPS"), 5, 8)
    assert (found.export.url, found.export.max_queue_size) == ("http://c:1/v1/traces", 3)
    assert found.export.resource == {"service.name": "triton-inference-server", "a": "b=c"}
