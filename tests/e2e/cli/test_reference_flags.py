"""Every flag of Triton's server, as its users write it: none of them ends the start."""

import pytest

from tests.support.command_line import serve_settings

PAIR = ("--grpc-server-cert=certificate.pem", "--grpc-server-key=key.pem")
"""A port with TLS needs both."""
FLAGS = {
    "--id=triton": (),
    "--exit-timeout-secs=30": (),
    "--log-verbose=0": (),
    "--log-verbose=true": (),
    "--log-info=true": (),
    "--log-warning=true": (),
    "--log-error=true": (),
    "--log-format=default": (),
    "--log-format=ISO8601": (),
    "--log-file=server.log": (),
    "--model-repository=models": (),
    "--model-store=models": (),
    "--model-control-mode=none": (),
    "--model-control-mode=POLL": (),
    "--model-control-mode=EXPLICIT": (),
    "--repository-poll-secs=15": ("--model-control-mode=poll",),
    "--load-model=add_sub": ("--model-control-mode=explicit",),
    "--exit-on-error=true": (),
    "--strict-readiness=true": (),
    "--disable-auto-complete-config": (),
    "--disable-auto-complete-config=false": (),
    "--model-config-name=large": (),
    "--model-load-thread-count=4": (),
    "--model-load-retry-count=0": (),
    "--model-namespacing=true": (),
    "--enable-peer-access=true": (),
    "--strict-model-config=false": (),
    "--allow-http=true": (),
    "--http-address=0.0.0.0": (),
    "--http-port=8000": (),
    "--reuse-http-port=false": (),
    "--http-thread-count=8": (),
    "--http-header-forward-pattern=x-.*": (),
    "--http-max-input-size=67108864": (),
    "--http-restricted-api=model-repository:key=value": (),
    "--allow-grpc=true": (),
    "--grpc-address=0.0.0.0": (),
    "--grpc-port=8001": (),
    "--reuse-grpc-port=0": (),
    "--grpc-header-forward-pattern=x-.*": (),
    "--grpc-infer-thread-count=2": (),
    "--grpc-infer-allocation-pool-size=8": (),
    "--grpc-max-response-pool-size=2147483647": (),
    "--grpc-use-ssl=false": (),
    "--grpc-use-ssl=true": PAIR,
    "--grpc-use-ssl-mutual=true": (*PAIR, "--grpc-root-cert=root.pem"),
    "--grpc-infer-response-compression-level=none": (),
    "--grpc-infer-response-compression-level=high": (),
    "--grpc-keepalive-time=7200000": (),
    "--grpc-keepalive-timeout=20000": (),
    "--grpc-keepalive-permit-without-calls=0": (),
    "--grpc-http2-max-pings-without-data=2": (),
    "--grpc-http2-min-recv-ping-interval-without-data=300000": (),
    "--grpc-http2-max-ping-strikes=2": (),
    "--grpc-max-connection-age=60000": (),
    "--grpc-max-connection-age-grace=1000": (),
    "--grpc-restricted-protocol=model-repository:key=value": (),
    "--sagemaker-thread-count=8": (),
    "--vertex-ai-thread-count=8": (),
    "--allow-metrics=true": (),
    "--allow-cpu-metrics=true": (),
    "--allow-gpu-metrics=true": (),
    "--metrics-address=0.0.0.0": (),
    "--metrics-port=8002": (),
    "--metrics-interval-ms=2000": (),
    "--metrics-config=summary_latencies=true": (),
    "--trace-config=triton,file=trace.json": (),
    "--trace-config=level=TIMESTAMPS": (),
    "--trace-file=trace.json": (),
    "--trace-level=TIMESTAMPS": (),
    "--trace-rate=1000": (),
    "--trace-count=-1": (),
    "--trace-log-frequency=0": (),
    "--backend-directory=/opt/tritonserver/backends": (),
    "--backend-config=python,shm-default-byte-size=1048576": (),
    "--backend-config=python,stub-timeout-seconds=30": (),
    "--backend-config=default-max-batch-size=4": (),
    "--repoagent-directory=/opt/tritonserver/repoagents": (),
    "--cache-config=local,size=1048576": (),
    "--cache-directory=/opt/tritonserver/caches": (),
    "--response-cache-byte-size=1048576": (),
    "--rate-limit=off": (),
    "--rate-limit=execution_count": (),
    "--rate-limit-resource=R1:10": ("--rate-limit=execution_count",),
    "--pinned-memory-pool-byte-size=268435456": (),
    "--cuda-memory-pool-byte-size=0:67108864": (),
    "--cuda-virtual-address-size=0:1073741824": (),
    "--min-supported-compute-capability=6.0": (),
    "--buffer-manager-thread-count=0": (),
    "--host-policy=cpu,cpu-cores=0-1": (),
    "--model-load-gpu-limit=0:0.8": (),
    "--allow-client-shm=false": (),
}


@pytest.mark.spec("srv-P01")
@pytest.mark.parametrize(("flag", "beside"), FLAGS.items(), ids=FLAGS)
def test_a_flag_of_triton_is_accepted(flag, beside):
    settings = serve_settings(["serve", "models", flag, *beside])
    assert len(settings.warnings) <= 1
    name, _, value = flag.partition("=")
    if value:
        assert serve_settings(["serve", "models", name, value, *beside]) == settings


def test_one_command_line_with_all_of_them():
    names = {flag.partition("=")[0]: (flag, *beside) for flag, beside in FLAGS.items()}
    together = [flag for name, flags in names.items() if name != "--response-cache-byte-size" for flag in flags]
    assert serve_settings(["serve", "models", *together]) is not None
