"""The settings of a port for a cloud."""

from dataclasses import dataclass

from pybackend.settings import KeyExemption


@dataclass(frozen=True)
class CloudSettings:
    """The front end for a cloud."""

    name: str  # the cloud's, for the log
    port: int  # port to bind; 0 takes a free one
    health_route: str  # path that tells whether the server should get requests
    predict_route: str  # path of inference
    media_type: str  # of bodies with binary tensors; the length of their JSON part follows
    exemption: KeyExemption  # opens the port to calls without API keys
    health: str = "ready"  # ``ready`` or ``live``: the meaning of the health route
    action: str = "infer"  # ``infer``, ``generate`` or ``generate_stream``: the form of requests
    model: str = ""  # the model that answers; empty for the server's only one
    model_source: str = ""  # the setting of ``model``, for messages
    redirect_header: str = ""  # header that names another route of the v2 protocol, in lower case; empty for none
