"""The flags of Triton's server for clouds, as its users write them: none of them ends the start."""

import pytest

from tests.support.command_line import serve_settings

FLAGS = [
    "--allow-sagemaker=false",
    "--sagemaker-port=8080",
    "--sagemaker-safe-port-range=8000-8090",
    "--allow-vertex-ai=false",
    "--vertex-ai-port=8080",
    "--vertex-ai-default-model=add_sub",
]


@pytest.mark.spec("srv-P01")
@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_triton_is_accepted(flag):
    settings = serve_settings(["serve", "models", flag])
    assert len(settings.warnings) <= 1
    assert serve_settings(["serve", "models", *flag.split("=")]) == settings
