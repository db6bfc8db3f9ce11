"""How much is measured: the full benchmark, and a short one to see that everything works."""

from dataclasses import dataclass

MB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """Rounds, times and sizes of one run of the benchmark.

    Attributes:
        connections: steps of the ladder; the first is the single connection.
        busy_connections: the step of the ladder by which load is judged.
        batched_connections: of the load on a model that executes batches.
        single_rounds: rounds with a single connection and small tensors, whose latency drifts with the machine; and of
            that load.
        rounds: rounds of everything else that is put under load.
        warm_up_s: before each measured window.
        duration_s: each measured window.
        tensor_bytes: sizes of the large tensors.
        large_requests: the least number of requests in a window where each of them takes long.
        chain_bytes: size of the tensor that passes through the steps of an ensemble.
        queue_lengths: so many requests wait at the same time; the first is the yardstick.
        queue_rounds: how often each of these queues is filled and emptied.
        http2_calls: unary calls that a connection of HTTP/2 answers in a round.
        http2_rounds: rounds of them.
        in_process_calls: calls of a round to a server in the caller's process.
        openai_streams: streams of OpenAI's API at once, pieces of each, and the pause between two.
        openai_rounds: rounds of them.
        call_bytes: size of the tensor in a series of large calls from model to model.
        call_series: these series follow each other on one server: so many requests with so many calls each; the first
            has the fewest calls, and what the others take is compared with it.
        start_rounds: how often each start-up is repeated.
        start_models: repositories of these many models are started; neighbours show what one more model costs.
        load_rounds: how often one more model of each kind is loaded into a server that runs.
        pack_rounds: how often an environment is packed.
        footprint_models: repositories of these many models have their memory read.
        scraped_models: the server whose metrics page is read all the time has so many models.
    """

    connections: tuple[int, ...]
    busy_connections: int
    batched_connections: int
    single_rounds: int
    rounds: int
    warm_up_s: float
    duration_s: float
    tensor_bytes: tuple[int, ...]
    large_requests: int
    chain_bytes: int
    queue_lengths: tuple[int, ...]
    queue_rounds: int
    http2_calls: int
    http2_rounds: int
    in_process_calls: int
    openai_streams: tuple[tuple[int, int, float], ...]
    openai_rounds: int
    call_bytes: int
    call_series: tuple[tuple[int, int], ...]
    start_rounds: int
    start_models: tuple[int, ...]
    load_rounds: int
    pack_rounds: int
    footprint_models: tuple[int, ...]
    scraped_models: int


FULL = Plan(
    connections=(1, 8, 32, 128, 1000),
    busy_connections=32,
    batched_connections=64,
    single_rounds=5,
    rounds=3,
    warm_up_s=0.5,
    duration_s=2.0,
    tensor_bytes=(1 * MB, 16 * MB, 64 * MB),
    large_requests=9,
    chain_bytes=16 * MB,
    queue_lengths=(100, 10_000, 100_000),
    queue_rounds=5,
    http2_calls=100_000,
    http2_rounds=3,
    in_process_calls=48_000,
    openai_streams=((1, 500, 0.005), (200, 30, 0.05)),
    openai_rounds=3,
    call_bytes=40 * MB,
    call_series=((1, 5), (1, 50), (5, 10)),
    start_rounds=5,
    start_models=(1, 2, 10, 11),
    load_rounds=15,
    pack_rounds=3,
    footprint_models=(1, 10, 50),
    scraped_models=500,
)

QUICK = Plan(
    connections=(1, 32),
    busy_connections=32,
    batched_connections=64,
    single_rounds=2,
    rounds=1,
    warm_up_s=0.1,
    duration_s=0.4,
    tensor_bytes=(1 * MB, 16 * MB),
    large_requests=3,
    chain_bytes=4 * MB,
    queue_lengths=(100, 10_000),
    queue_rounds=2,
    http2_calls=10_000,
    http2_rounds=1,
    in_process_calls=3_200,
    openai_streams=((1, 50, 0.005), (50, 20, 0.05)),
    openai_rounds=1,
    call_bytes=4 * MB,
    call_series=((1, 5), (1, 20)),
    start_rounds=2,
    start_models=(1, 2),
    load_rounds=2,
    pack_rounds=1,
    footprint_models=(1, 4),
    scraped_models=10,
)
