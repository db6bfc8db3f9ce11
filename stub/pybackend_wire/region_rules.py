"""Texts about outputs in clients' regions, which both host and stub write."""


def too_small_text(output_name: str, region_bytes: int, output_bytes: int) -> str:
    """Return the error for an output that is larger than its place in a region."""
    return (
        f"shared memory size specified with the request for output '{output_name}' ({region_bytes} bytes) should be at "
        f"least {output_bytes} bytes to hold the results"
    )
