"""The flags of ``pybackend serve``: the parser, other sources, ``--print-config`` and the page of all flags come from this table.

A new flag is a row here and its field in :mod:`pybackend.settings`; `make flags` writes it into the manual.
"""

import re
from collections.abc import Sequence
from operator import not_
from pathlib import Path

from pybackend.cli.backend_config import backend_setting, backend_settings
from pybackend.cli.cache_config import cache_setting
from pybackend.cli.flag_values import (
    FOREVER_MS,
    absolute_if_given,
    config_name,
    control_mode,
    device_limit,
    exemptions,
    front_ends,
    host_policies,
    host_policy,
    log_format,
    metrics_setting,
    milliseconds,
    origin,
    pattern,
    pool,
    rate_limit_mode,
    repository_place,
    resource_count,
    restriction,
    restrictions,
    verbosity,
)
from pybackend.cli.trace_config import trace_level, trace_setting
from pybackend.flag import Flag, FlagGroup, boolean, integer, switch
from pybackend.observability.tracing.settings import SIGNED_32, UNSIGNED_32
from pybackend.plugins import RUNNERS, flag_owners
from pybackend.settings import ApiGroup, KeyExemption, SandboxSettings, half_of_memory_bytes, quarter_of_memory_bytes
from pybackend_wire.confinement import LEVELS

_COUNT, _NUMBER, _PORT, _MEMORY = integer(0), integer(1), integer(0, 65535), integer(1024 * 1024)
_MS = integer(1, FOREVER_MS)

_HEADER_SECRET = re.compile(r"(?<==).*", re.DOTALL)

# The formatter would put each column of a row on a separate line.
# fmt: off
_MODELS = (
    Flag("repository", "REPOSITORY", "directory that holds the models, or URL of a place in cloud storage",
         read=repository_place),
    Flag("--model-repository", "DIR",
         "another directory of models, or s3://bucket/path, s3://https://host:port/bucket/path, gs://bucket/path, "
         "as://account/container/path; may be repeated", read=repository_place, repeats=True, alias="--model-store",
         page="a directory of models, or the URL of [a repository in cloud storage](repository.md#repositories-in-cloud-storage); may be repeated, or given "
         "as the positional argument"),
    Flag("--repository-cache-directory", "DIR", "where models from cloud storage are kept on this machine",
         "cloud_repositories.cache_directory", Path, absolute_if_given, default_text="$XDG_CACHE_HOME/pybackend/repositories, else /var/cache/pybackend/repositories for root and "
         "~/.cache/pybackend/repositories for others",
         page="where models from cloud storage are kept on this machine: see [The cache](repository.md#the-cache)"),
    Flag("--model-control-mode", "MODE",
         "none: load all models at start and keep them; poll: and follow changes of the repositories; explicit: load "
         "models on request", "models.control", control_mode,
         page="`none`: load all models at start and keep them; `poll`: and follow changes of the repositories; `explicit`: models are "
         "loaded and unloaded on request. See [Model control](model-control.md)"),
    Flag("--repository-poll-secs", "SECONDS",
         "with mode poll, how often the repositories are searched for changes; 0 for never",
         "models.poll_s", _COUNT, lambda seconds: seconds or None,
         page="with mode `poll`, how often the repositories are searched for changes; `0` for never"),
    Flag("--load-model", "NAME", "with explicit control, a model to load at start; may be repeated; * loads all",
         repeats=True, page="with explicit control, a model to load at start; may be repeated; `*` loads all"),
    switch("--disable-auto-complete-config", "use configurations as written; models cannot complete them",
           default=False, page="use configurations as written; `auto_complete_config` is not called"),
    switch("--strict-model-config", "an older name of --disable-auto-complete-config", default=False),
    switch("--exit-on-error", "exit if a model cannot be loaded at start", "exit_on_error",
           page="exit with status 1 if a model cannot be loaded at start; `false` serves the others"),
    switch("--strict-readiness", "be ready only while every model is ready", "strict_readiness",
           page="`/v2/health/ready` requires every model to be ready; `false`: only the server. See "
           "[One dead model of many](deploy.md#one-dead-model-of-many)"),
    switch("--validate-outputs",
           "an output that is not as configured is an error; VALIDATE_OUTPUTS in a model's parameters decides for that model",
           "models.validate_outputs",
           page="an output that is [not as configured](../authors/tensors.md#outputs-that-do-not-match-the-configuration) is an error, in "
           "models without the parameter `VALIDATE_OUTPUTS`"),
    Flag("--model-load-thread-count", "N", "number of models that may load at the same time",
         "models.load_count", integer(1, 1024)),
    Flag("--model-load-retry-count", "N", "how often a failed load is tried again",
         "models.load_retry_count", integer(0, 1000),
         page="how often a failed load of a version is tried again, after 0.1 s and then after twice as long each time, up to 5 s"),
    Flag("--model-config-name", "NAME",
         "models with a file configs/NAME.pbtxt are configured by that instead of config.pbtxt",
         "models.config_name", config_name,
         page="`large`: a model with a file `configs/large.pbtxt` [is configured by that](repository.md#configurations-by-name) instead "
         "of `config.pbtxt`"),
    switch("--model-namespacing",
           "each repository is a namespace: models of the same name in several repositories are all served",
           "model_namespacing",
           page="each repository is a [namespace](repository.md#namespaces): models of the same name in several repositories are all served"),
    switch("--no-zygote", "start each process separately instead of forking from one with preloaded modules",
           "zygotes", then=not_, default=False,
           page="start each process separately instead of [forking](../authors/life-cycle.md#how-processes-start)"),
    Flag("--gpu-models", "MODE",
         "on a machine without a GPU, models configured for one (KIND_GPU): refuse to load them, or run them on the cpu",
         "models.gpu_models_on_cpu", then=lambda mode: mode == "cpu", default="refuse", choices=("refuse", "cpu"),
         page="without a GPU, or for a backend that uses none: `cpu` runs models with `KIND_GPU` on the CPU, see [GPUs](gpus.md#without-a-gpu)"),
    Flag("--model-memory-limit", "BYTES",
         "limit on tensor memory, for each model's inputs and for each instance's outputs",
         "models.memory_limit_bytes", _MEMORY, lambda limit: limit or half_of_memory_bytes(), default=None, default_text="half of the server's",
         page="limit in bytes on memory for tensors: the inputs of each model, and the outputs of each instance"),
    Flag("--tensor-memory-limit", "BYTES", "limit on the tensor memory of all models together",
         read=_MEMORY, default_text="half of the server's, or --model-memory-limit if that is more",
         page="limit in bytes on the memory for tensors of all models together"),
    Flag("--process-memory-limit", "BYTES",
         "limit on the own memory of each process of models that set none in PROCESS_MEMORY_LIMIT_MB; a process beyond it is ended, and restarted",
         "models.process_memory_limit_bytes", _MEMORY, lambda limit: limit or 0, default=None, default_text="no limit",
         page="limit in bytes on a process's own memory, beyond which it is [ended and restarted](../authors/life-cycle.md#a-process-that-grows), in models that set no other"),
    Flag("--backend-directory", "DIR",
         "directory of your own backends, DIR/NAME/model.py; one of pybackend's names replaces that backend",
         "backend_directory", Path, absolute_if_given,
         page="directory of [Python-based backends](../authors/python-based-backends.md); it need not exist"),
    Flag("--backend-config", "BACKEND,SETTING=VALUE",
         "a setting of a backend: environment=PATH, default-max-batch-size=N, or one of Triton's Python backend, which is "
         "checked, but has no effect; may be repeated",
         "backend_settings", backend_setting, backend_settings, repeats=True,
         page="`<backend>,<setting>=<value>`, may be repeated: the [`environment`](../authors/models-without-code.md#environments) of a "
         "backend, and `default-max-batch-size`; settings of Triton's Python backend are checked, but have "
         "[no effect](../authors/python-based-backends.md#settings)"),
)

_ENVIRONMENTS = (
    Flag("--environment-cache-directory", "DIR", "where environments are unpacked",
         "environments.cache_directory", Path, absolute_if_given, default_text="$XDG_CACHE_HOME/pybackend, else /var/cache/pybackend for root and ~/.cache/pybackend for others",
         page="where [environments](../authors/environments.md) of models are unpacked: see [Environment cache](../authors/environments.md#environment-cache)"),
    Flag("--environment-cache-size", "BYTES", "remove unused environments when the total exceeds this size",
         "environments.cache_limit_bytes", _NUMBER, default_text="never"),
    switch("--allow-pack-at-load", "install packages when a model names a list of them", "environments.pack_at_load",
           page="allow models to name lists of packages, which are [installed when the model is loaded](../authors/environments.md#lists-of-packages)"),
)

_SANDBOX = (
    Flag("--sandbox", "LEVEL", "level for models that name none in their parameters: off, standard or strict",
         choices=LEVELS, default_text=SandboxSettings().level,
         page="`off`, `standard` or `strict`: the [isolation level](security.md) of models that name none"),
    Flag("--sandbox-floor", "LEVEL", "lowest level for any model; models cannot widen it",
         "sandbox.floor", choices=LEVELS),
    switch("--sandbox-required", "refuse to load a model if its sandbox lacks a layer", "sandbox.required",
           page="refuse to load a model if a layer of its sandbox cannot be applied; by default, only `strict` models are refused"),
    switch("--allow-unix-sockets", "models below strict may use Unix sockets with a path unless their parameters say otherwise",
           "sandbox.unix_sockets",
           page="models below `strict` may use Unix sockets with a path; without it, only those with [`SANDBOX_UNIX_SOCKETS`](security.md#options-of-a-model)"),
    Flag("--model-homes-size", "BYTES", "remove unused home directories of models when all of them together exceed this size",
         "sandbox.homes_limit_bytes", _NUMBER, default_text="100 GiB",
         page="unused [home directories of models](security.md#home-directories), the one unused longest first, are removed when all together exceed this size"),
    switch("--allow-model-overrides",
           "models at level standard may supply configurations and files when they load models of other authors",
           "sandbox.overrides",
           page="models at `standard` may supply [configurations and files](model-control.md#configurations-and-files-of-a-load) when they load models of other authors"),
)


def _address_flags(service: str, address: str, port: str) -> tuple[Flag, ...]:
    return (
        Flag(f"--{service}-address", "ADDRESS", "address to listen on, or unix:PATH for a Unix-domain socket",
             f"{service}.address", page=address),
        Flag(f"--{service}-port", "PORT", "0 takes a free port", f"{service}.port", _PORT, page=port),
        switch(f"--reuse-{service}-port", "share the port with other servers", f"{service}.reuse_port",
               page="[share the port](access.md#shared-ports) with other servers"),
    )


def _tls_flags(service: str) -> tuple[Flag, ...]:
    return (
        switch(f"--{service}-use-ssl", "accept TLS connections only", default=False,
               page="accept [TLS](access.md#tls) connections only"),
        switch(f"--{service}-use-ssl-mutual", "the same, and clients need a certificate", default=False),
        Flag(f"--{service}-server-cert", "FILE", "PEM file with the server's certificate", read=Path),
        Flag(f"--{service}-server-key", "FILE", "PEM file with the private key of the certificate", read=Path),
        Flag(f"--{service}-root-cert", "FILE", "PEM file with the certificates that sign those of clients",
             read=Path, default_text="the system's"),
    )


_FREE_PORT = "`0` takes a free port and prints it"
_ENDPOINTS = (
    Flag("--front-ends", "N",
         "processes that accept the connections of HTTP and gRPC, for machines with many cores; auto decides by their number",
         "front_ends", front_ends, default=0,
         page="processes that accept the connections of HTTP and gRPC; `auto`: none on up to four cores, else one for four cores, up to four. See "
         "[How far it scales](../performance.md#how-far-it-scales-and-which-knob)"),
    # Both are true, unless the front end for Vertex AI is on.
    switch("--allow-http", "serve HTTP", default=True, depends=True),
    *_address_flags(
        "http",
        "`127.0.0.1`, `::1` or `unix:/path` make HTTP reachable from this machine only: see "
        "[Addresses and sockets](access.md#addresses-and-sockets)",
        _FREE_PORT,
    ),
    Flag("--http-max-input-size", "BYTES", "largest JSON part or raw body of a request",
         "http.max_input_size_bytes", integer(-(2**63)),
         page="limit in bytes on JSON, raw and decompressed input: see [Limits](limits.md)"),
    Flag("--http-memory-limit", "BYTES", "memory limit for slowly arriving bodies and slowly read responses",
         "http.memory_limit_bytes", _MEMORY, lambda limit: limit or quarter_of_memory_bytes(), default=None, default_text="a quarter of the server's",
         page="limit in bytes on data buffered for slow clients: see [Slow clients](limits.md#slow-clients)"),
    *_tls_flags("http"),
    switch("--allow-grpc", "serve gRPC", default=True, depends=True, page="serve [gRPC](grpc.md)"),
    *_address_flags("grpc", "the same; `--http-address` does not apply to gRPC", _FREE_PORT),
    *_tls_flags("grpc"),
    switch("--grpc-keepalive-permit-without-calls",
           "send PINGs to clients without open calls, and allow them as many as others",
           "grpc.keepalive.permit_without_calls"),
    Flag("--grpc-keepalive-time", "MS", "silence after which the server sends a PING",
         "grpc.keepalive.time_s", _MS, milliseconds, default=7_200_000,
         page="silence after which the server [sends a PING](grpc.md#keepalive), in milliseconds"),
    Flag("--grpc-keepalive-timeout", "MS", "time for the client to answer it",
         "grpc.keepalive.timeout_s", _MS, milliseconds, default=20_000),
    Flag("--grpc-http2-max-pings-without-data", "N", "PINGs of the server between two answers; 0 for any number",
         "grpc.keepalive.max_pings_without_data", integer(0, FOREVER_MS)),
    Flag("--grpc-http2-min-recv-ping-interval-without-data", "MS", "least time between two PINGs of a client",
         "grpc.keepalive.min_ping_interval_s", integer(0, FOREVER_MS), lambda number: number / 1000, default=300_000),
    Flag("--grpc-http2-max-ping-strikes", "N", "PINGs of a client that may come earlier; 0 for any number",
         "grpc.keepalive.max_ping_strikes", integer(0, FOREVER_MS)),
    Flag("--grpc-max-connection-age", "MS", "age at which a connection ends",
         "grpc.keepalive.max_age_s", _MS, milliseconds, default=FOREVER_MS, default_text="no limit",
         page="age at which a [connection ends](grpc.md#keepalive), in milliseconds"),
    Flag("--grpc-max-connection-age-grace", "MS", "time for its calls to end",
         "grpc.keepalive.max_age_grace_s", integer(0, FOREVER_MS), milliseconds, default=FOREVER_MS, default_text="no limit"),
    Flag("--grpc-infer-response-compression-level", "LEVEL",
         "none, low, medium or high: compression of responses of inference, if clients accept it",
         "grpc.compression_level", choices=["none", "low", "medium", "high"],
         page="`low`, `medium` or `high`: see [Compression](grpc.md#compression)"),
    switch("--allow-metrics", "serve metrics for Prometheus", "http.metrics_enabled"),
    Flag("--metrics-address", "ADDRESS", "address to listen on", default_text="as for HTTP",
         page="address to listen on; if that of HTTP is a Unix-domain socket, `127.0.0.1`"),
    Flag("--metrics-port", "PORT", "0 takes a free port", "http.metrics_port", _PORT, page=_FREE_PORT),
)

_METRICS = (
    switch("--allow-cpu-metrics", "show CPU and memory of the machine", "metrics.cpu",
           page="show [CPU and memory](metrics.md#flags) of the machine"),
    switch("--allow-gpu-metrics", "show the machine's GPUs", "metrics.gpu",
           page="show the machine's [GPUs](metrics.md#flags)"),
    Flag("--metrics-interval-ms", "MS", "pause between looks at CPUs and GPUs",
         "metrics.interval_s", _NUMBER, lambda number: number / 1000, default=2000),
    Flag("--metrics-config", "KEY=VALUE",
         "counter_latencies, summary_latencies, histogram_latencies (BOOL), or summary_quantiles (0.5:0.05,0.99:0.001)",
         read=metrics_setting, repeats=True,
         page="`<setting>=<value>`, may be repeated: [latencies](metrics.md#flags) on the metrics page"),
)


def _header_flags(service: str, name: str, what: str) -> tuple[Flag, ...]:
    return (
        Flag(name, "GROUP,GROUP:HEADER=VALUE",
             f"calls of these groups need a header: {', '.join(ApiGroup)}; may be repeated",
             f"{service}.restrictions", restriction(name, what, service), restrictions(what), repeats=True, secret=_HEADER_SECRET,
             page="`<group>,<group>:<header>=<value>`, may be repeated: [groups of calls that need a header](access.md#restricted-groups)"),
        Flag(f"--{service}-header-forward-pattern", "RE2",
             "headers whose names this pattern matches become request parameters",
             f"{service}.forwarded_headers", pattern, default_text="none",
             page="[headers that become request parameters](access.md#forwarded-headers)"),
    )


_ACCESS = (
    Flag("--api-key-file", "FILE",
         "calls need one of the keys in this file, one a line; it is read again when it changes",
         read=Path, default_text="calls need none",
         page="calls need one of the [API keys](access.md#api-keys) in this file, one a line; it is read again when it changes"),
    Flag("--api-key-exempt", "CALLS", f"calls that need no API key, separated by commas: {', '.join(KeyExemption)}",
         read=exemptions, default=frozenset(), default_text="none"),
    *_header_flags("http", "--http-restricted-api", "api"),
    *_header_flags("grpc", "--grpc-restricted-protocol", "protocol"),
    Flag("--http-cors-origin", "ORIGIN",
         "web pages that may call the HTTP port: https://example.org, or * for all; may be repeated",
         read=origin, repeats=True, default_text="none",
         page="[web pages](access.md#web-pages) that may call the HTTP port: `https://example.org`, or `*` for all; may be repeated"),
    switch("--http-cors-credentials", "these pages may send cookies and certificates", default=False),
)

_SERVER = (
    Flag("--id", "NAME", "name in the server's metadata", "server_id", page="the server's name in `GET /v2`"),
    Flag("--exit-timeout-secs", "SECONDS", "how long running requests and `finalize` may take at shutdown",
         "models.exit_timeout_s", _COUNT),
    Flag("--exit-keepalive-secs", "SECONDS",
         "how long clients that keep their connections may go on at shutdown, each with one more request",
         "exit_keepalive_s", _COUNT,
         page="how long clients that keep their connections may go on at [shutdown](#stop), each with one more request"),
    Flag("--cache-config", "CACHE,SETTING=VALUE",
         "response cache of models with response_cache: local,size=BYTES or redis,host=NAME,port=PORT",
         read=cache_setting, repeats=True, default_text="none", secret=re.compile(r"(?<=,password=).*", re.DOTALL),
         page="`local,size=<bytes>` or `redis,host=<name>,port=<port>`: the [response cache](response-cache.md)"),
    Flag("--host-policy", "NAME,SETTING=VALUE",
         "cores for the processes of instances: cpu,cpu-cores=0-3 or cpu,numa-node=0; may be repeated",
         "models.host_policies", host_policy, host_policies, repeats=True,
         page="`<name>,cpu-cores=<first>-<last>` or `<name>,numa-node=<number>`, may be repeated: "
         "[the cores for models' processes](../performance.md#cores-and-resources)"),
    Flag("--max-queued-bytes", "BYTES",
         "limit on input bytes of queued and running requests; requests beyond it get status 503",
         "max_queued_bytes", _NUMBER, default_text="no limit",
         page="limit on the input bytes of queued and running requests; requests beyond it get status 503: see [Limits](limits.md)"),
    Flag("--rate-limit", "MODE",
         "off, or execution_count: instances execute only while they hold the resources that they need",
         read=rate_limit_mode, default="off",
         page="`execution_count`: instances execute only while they hold [the resources that they need](../performance.md#resources)"),
    Flag("--rate-limit-resource", "NAME:COUNT[:DEVICE]",
         "available count of a resource [as many as the most demanding instance needs]; may be repeated",
         read=resource_count, repeats=True),
    Flag("--response-cache-byte-size", "BYTES", "the same as --cache-config=local,size=BYTES", read=_COUNT),
    switch("--allow-client-shm", "clients on this machine may register shared memory and name it in requests",
           "client_shared_memory",
           page="clients on this machine may [register shared memory](shared_memory.md) and name it in requests"),
)

_LOG = (
    Flag("--log-verbose", "LEVEL", "1 enables verbose lines, including those of models",
         "log.verbose_level", verbosity, bare=1),
    switch("--log-info", "write informational lines", "log.info"),
    switch("--log-warning", "write warnings", "log.warning"),
    switch("--log-error", "write errors", "log.error"),
    Flag("--log-format", "FORMAT", "form of the lines: default, ISO8601, json or short", "log.format", log_format,
         page="`default`, `ISO8601`, `json` or `short`: see [Logs](logging.md#formats)"),
    Flag("--log-file", "FILE", "write all lines to this file; SIGHUP opens it again",
         "log.file", Path, lambda path: absolute_if_given(path) if str(path) != "." else None, default_text="standard output and standard error"),
    switch("--log-access", "write a line about every answered request", "log.access",
           page="write a line about every answered request: see [Access log](logging.md#access-log)"),
)

_TRACES = (
    Flag("--trace-config", "[MODE,]SETTING=VALUE",
         "which requests are traced, and where to: level=TIMESTAMPS, rate=1000, triton,file=FILE, mode=opentelemetry, "
         "opentelemetry,url=URL, ...; may be repeated",
         read=trace_setting, repeats=True, default_text="none", secret=re.compile(r"(?<=://)[^/@]*(?=@)"),
         page="`[<mode>,]<setting>=<value>`, may be repeated: [traces](logging.md#traces)"),
    Flag("--trace-file", "FILE", "older: triton,file=FILE"),
    Flag("--trace-level", "LEVEL", "older: level=LEVEL", read=trace_level, repeats=True),
    Flag("--trace-rate", "N", "older: rate=N", read=integer(0, UNSIGNED_32)),
    Flag("--trace-count", "N", "older: count=N", read=integer(-1, SIGNED_32)),
    Flag("--trace-log-frequency", "N", "older: triton,log-frequency=N", read=integer(0, UNSIGNED_32)),
)

_DEBUGGING = (
    Flag("--debug", "MODEL", "run the processes of a model under debugpy, without time limits; may be repeated",
         repeats=True,
         page="run the processes of a model under debugpy, without time limits; may be repeated: see "
         "[Debugging](../authors/errors.md#debugging)"),
    Flag("--debug-port", "PORT", "port on 127.0.0.1 for the first process, further ones follow; 0 takes free ports",
         "debug.port", _PORT),
    switch("--no-fast-paths", "remember nothing of earlier requests, to find out whether a fault comes from that",
           "fast_paths", then=not_, default=False,
           page="remember nothing of earlier requests over HTTP and gRPC ([the hot path](../architecture/hot-path.md)), to find out whether a fault "
           "comes from that; slower"),
    switch("--debug-wait", "import a debugged model only after a debugger has attached", "debug.waits"),
)

_MACHINES = (
    Flag("--on", "ENGINE", "ray: Ray Serve runs replicas of this server on the machines of a cluster, or on this one",
         choices=tuple(RUNNERS), default_text="this process serves",
         page="`ray`: Ray Serve runs replicas of this server, see [From one machine to many](many-machines.md)"),
    Flag("--pools-file", "FILE", "names the models that other servers have, and these servers; --on=ray writes it",
         "pools_file", Path, default_text="none",
         page="names the models that other servers have, and these servers; `--on=ray` writes it: see [Pools](many-machines.md#pools)"),
)

_CONFIGURATION = (
    Flag("--config-file", "FILE",
         "TOML with the names of flags as keys; the command line and variables PYBACKEND_<FLAG> win over it",
         read=Path, default_text="none",
         page="a [file with settings](#settings-variables-and-a-file), TOML with the names of flags as keys"),
    Flag("--version", "", "print the version, and exit", action="version"),
    Flag("--print-config", "", "print the settings in effect and where each comes from, and exit", action="store_true"),
)

_LOOP = "one event loop serves all connections"
_GPU_MEMORY = "tensors lie in the host's memory"
_NO_POOL = "messages are not pooled"
UNUSED = (
    Flag("--http-thread-count", "N", _LOOP, read=_NUMBER),
    Flag("--grpc-infer-thread-count", "N", _LOOP, read=integer(2, 128)),
    Flag("--sagemaker-thread-count", "N", _LOOP, read=_NUMBER),
    Flag("--vertex-ai-thread-count", "N", _LOOP, read=_NUMBER),
    Flag("--grpc-infer-allocation-pool-size", "N", _NO_POOL, read=_COUNT),
    Flag("--grpc-max-response-pool-size", "N", _NO_POOL, read=_NUMBER),
    Flag("--buffer-manager-thread-count", "N", "there are no copies between devices", read=_COUNT),
    Flag("--pinned-memory-pool-byte-size", "BYTES", _GPU_MEMORY, read=_COUNT),
    Flag("--cuda-memory-pool-byte-size", "DEVICE:BYTES", _GPU_MEMORY, read=pool),
    Flag("--cuda-virtual-address-size", "DEVICE:BYTES", _GPU_MEMORY, read=pool),
    Flag("--min-supported-compute-capability", "VERSION", "models may use every GPU that the driver serves", read=float),
    Flag("--model-load-gpu-limit", "DEVICE:FRACTION", "models choose how much memory of a GPU they take", read=device_limit),
    Flag("--enable-peer-access", "BOOL", _GPU_MEMORY, read=boolean),
    Flag("--cache-directory", "DIR", "the caches `local` and `redis` are built in", read=str),
    Flag("--repoagent-directory", "DIR", "agents in compiled libraries are not loaded", read=str),
)

# fmt: on

_OWN_GROUPS = (
    FlagGroup("models", _MODELS),
    FlagGroup("environments of models", _ENVIRONMENTS),
    FlagGroup("sandbox of models", _SANDBOX),
    FlagGroup("endpoints", _ENDPOINTS),
    FlagGroup("metrics", _METRICS),
    FlagGroup("access", _ACCESS),
    FlagGroup("clouds", ()),
    FlagGroup("server", _SERVER),
    FlagGroup("log", _LOG),
    FlagGroup("traces", _TRACES),
    FlagGroup("debugging", _DEBUGGING),
    FlagGroup("several machines", _MACHINES),
    FlagGroup("configuration", _CONFIGURATION),
    FlagGroup("accepted and without effect, because Triton's server has them", UNUSED),
)


def _with_owners(own: Sequence[FlagGroup]) -> tuple[FlagGroup, ...]:
    """The groups, with the flags of what stands around the server; see :mod:`pybackend.plugins`."""
    groups = {group.title: group for group in own}
    for owner in flag_owners():
        for title, flags in owner.flags.items():
            groups[title] = FlagGroup(title, (*groups[title].flags, *flags))
    return tuple(groups.values())


GROUPS = _with_owners(_OWN_GROUPS)

FLAGS = tuple(flag for group in GROUPS for flag in group.flags)
