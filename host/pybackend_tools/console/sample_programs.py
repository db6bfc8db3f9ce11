"""A request as programs that send it: each works when it is pasted. Secrets are named by variables, never written."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pybackend.errors import ServerError
from pybackend_client.connection import Credentials, model_path
from pybackend_client.inference import Request, array_of, encoded, flat_values
from pybackend_client.values import ModelTensor, Tensor

_MOST_INLINE = 64
_KEY = "PYBACKEND_API_KEY"
_MOST_FORM_BYTES = 15 * 1024 * 1024
"""Of files: generate takes 16 MB with all that is around them."""

_SCHEDULED = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True)
class Server:
    """The server as the programs reach it."""

    url: str
    grpc_url: str
    access: Credentials = field(repr=False)

    @property
    def insecure(self) -> list[str]:
        """The flag for a certificate that nobody checks: only where there is one."""
        return ["--insecure"] if self.url.startswith("https:") and not self.access.verify else []


@dataclass(frozen=True)
class Programs:
    """Programs by title, and the files that they read, by name."""

    texts: Mapping[str, str]
    files: Mapping[str, bytes]


def programs_for(
    server: Server, request: Request, tensors: Sequence[Tensor], wanted: Mapping[str, ModelTensor], *, decoupled: bool
) -> Programs:
    """The programs that send a request."""
    sent = [_Sent(tensor) for tensor in tensors]
    writer = _Writer(server, request, sent, wanted, decoupled)
    curl, body = writer.curl()
    texts = {
        "curl": curl,
        "Python, HTTP": writer.python_http(),
        "Python, gRPC": writer.python_grpc(),
        "generate": writer.generate(),
        "pybackend infer": writer.command(),
    }
    files = {each.file: each.contents() for each in sent if each.file}
    return Programs(texts, {**files, **({"request.bin": body} if body else {})})


class _Sent:
    """A tensor that is sent: its values stand in the program, or in a file."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array = array_of(tensor.data, tensor.datatype).reshape(tensor.shape)
        self.values: Any = None  # nested lists, None if the values are in a file
        self.file = ""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", tensor.name)
        if tensor.datatype == "BYTES":
            try:
                texts = [each.decode() for each in self.array.ravel().tolist()]
            except UnicodeDecodeError:
                self.file = f"{name}.bin" if self.array.size == 1 else f"{name}.npy"
                return
            if sum(map(len, texts)) <= 2000 and len(texts) <= _MOST_INLINE:
                self.values = np.array(texts, object).reshape(tensor.shape).tolist()
            else:
                self.file = f"{name}.bin" if self.array.size == 1 else f"{name}.npy"
        elif self.array.size <= _MOST_INLINE and bool(np.isfinite(self.array.astype(np.float64)).all()):
            # Float32 and less in as few digits as say the same.
            short = self.array.astype(str).astype(np.float64) if self.array.dtype.kind == "f" else self.array
            self.values = short.tolist()
        else:
            self.file = f"{name}.npy"

    def contents(self) -> bytes:
        if self.file.endswith(".bin"):
            return bytes(self.array.ravel()[0])
        target = io.BytesIO()
        array = self.array.astype(np.bytes_) if self.tensor.datatype == "BYTES" else self.array
        np.save(target, array, allow_pickle=False)
        return target.getvalue()

    @property
    def dtype(self) -> str:
        """Numpy's type in a Python program."""
        if self.tensor.datatype == "BYTES":
            return "np.object_"
        return "bool" if self.array.dtype.kind == "b" else f"np.{self.array.dtype.newbyteorder('=').name}"

    @property
    def argument(self) -> str:
        """The input on a command line."""
        return f"{self.tensor.name}={f'@{self.file}' if self.file else json.dumps(self.values)}"

    @property
    def expression(self) -> str:
        """The array in a Python program."""
        shape = list(self.tensor.shape)
        if self.file.endswith(".bin"):
            return f"np.array([open({self.file!r}, 'rb').read()], dtype=np.object_).reshape({shape})"
        if self.file:
            loaded = f"np.load({self.file!r})"
            return f"{loaded}.astype(np.object_)" if self.tensor.datatype == "BYTES" else loaded
        return f"np.array({self.values!r}, dtype={self.dtype}).reshape({shape})"


@dataclass(frozen=True)
class _Writer:
    server: Server
    request: Request
    sent: Sequence[_Sent]
    wanted: Mapping[str, ModelTensor]
    decoupled: bool

    def curl(self) -> tuple[str, bytes]:
        """The command, and the contents of request.bin; empty if it is not needed."""
        if self.decoupled:
            return "# A model that streams answers at generate_stream: see generate.", b""
        path = f"{model_path(self.request.model, self.request.version)}/infer"
        if any(each.file for each in self.sent):
            body, length = encoded(self.request, [each.tensor for each in self.sent], binary=False)
            lines = [*self._call(path), f"-H 'Inference-Header-Content-Length: {length}'", "--data-binary @request.bin"]
            return " \\\n  ".join(lines), body
        document: dict[str, Any] = {
            "inputs": [
                {
                    "name": each.tensor.name,
                    "datatype": each.tensor.datatype,
                    "shape": each.tensor.shape,
                    "data": each.values,
                }
                for each in self.sent
            ]
        }
        if self.request.request_id:
            document["id"] = self.request.request_id
        if self.request.parameters:
            document["parameters"] = dict(self.request.parameters)
        if self.request.outputs:
            document["outputs"] = [
                {"name": name, "parameters": {"classification": count}}
                if (count := self.request.classes.get(name, 0))
                else {"name": name}
                for name in self.request.outputs
            ]
        lines = [*self._call(path), "-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(document))}"]
        return " \\\n  ".join(lines), b""

    def generate(self) -> str:
        if "sequence_id" in self.request.parameters:
            return f"# generate has no sequences: see {'gRPC' if self.decoupled else 'curl'}."
        end = "generate_stream" if self.decoupled else "generate"
        call = self._call(
            f"{model_path(self.request.model, self.request.version)}/{end}", "-sN" if self.decoupled else "-s"
        )
        document: dict[str, Any] = {}
        files = [each for each in self.sent if each.file.endswith(".bin")]
        try:
            for each in self.sent:
                if each in files:
                    continue
                values = flat_values(each.tensor, self.wanted[each.tensor.name])
                if len(values) > 1024:
                    return f"# generate takes JSON, and {each.tensor.name} has {len(values):,} elements: send it with infer."
                document[each.tensor.name] = values[0] if len(values) == 1 else values
        except ServerError as error:
            return f"# {error}"
        if files:
            return self._form(call, files, document)
        document |= self.request.parameters
        if self.request.request_id:
            document["id"] = self.request.request_id
        return " \\\n  ".join([*call, f"-d {shlex.quote(json.dumps(document))}"])

    def _form(self, call: Sequence[str], files: Sequence[_Sent], values: Mapping[str, Any]) -> str:
        """Files as parts of a form.

        Texts beside them are parts as they are, and other values are written as in JSON.
        """
        nbytes = sum(len(each.contents()) for each in files)
        if nbytes > _MOST_FORM_BYTES:
            return f"# generate takes {_MOST_FORM_BYTES >> 20} MB at most, and the files have {nbytes:,} bytes: send them with infer."
        lines = [*call, *(f"-F {shlex.quote(f'{each.tensor.name}=@{each.file}')}" for each in files)]
        fields: list[tuple[str, str]] = []
        for name, value in values.items():
            if self.wanted[name].datatype != "BYTES":
                fields.append((name, json.dumps(value)))
                continue
            texts = value if isinstance(value, list) else [value]
            if not all(isinstance(text, str) for text in texts):
                return f"# A form takes each element of {name} as a file of its own: send it with infer."
            fields += ((name, text) for text in texts)
        if self.request.parameters:
            fields.append(("parameters", json.dumps(dict(self.request.parameters))))
        if self.request.request_id:
            fields.append(("id", self.request.request_id))
        lines += (f"--form-string {shlex.quote(f'{name}={text}')}" for name, text in fields)
        return " \\\n  ".join(lines)

    def command(self) -> str:
        access = self.server.access
        words = [
            f"--url={self.server.url}",
            *([f"--root-cert={access.root}"] if access.root else []),
            *self.server.insecure,
        ]
        words += [f"--client-cert={access.certificate}"] if access.certificate else []
        words += [f"--client-key={access.key}"] if access.key else []
        lines = [" ".join(["pybackend infer", *map(shlex.quote, words)])]
        lines += [f'--header "{name}=${variable}"' for name, variable in self._headers() if name != "Authorization"]
        lines += [f"--model-version={self.request.version}"] if self.request.version else []
        own = [f"--{name.replace('_', '-')}" for name in _SCHEDULED[1:] if self.request.parameters.get(name)]
        if "sequence_id" in self.request.parameters:
            own.append(f"--sequence-id={self.request.parameters['sequence_id']}")
        lines += map(shlex.quote, own)
        others = {name: value for name, value in self.request.parameters.items() if name not in _SCHEDULED}
        lines += [
            f"--parameter {shlex.quote(f'{name}={value if isinstance(value, str) else json.dumps(value)}')}"
            for name, value in others.items()
        ]
        lines += [f"--id={shlex.quote(self.request.request_id)}"] if self.request.request_id else []
        lines.append(shlex.quote(self.request.model))
        lines += [f"--input {shlex.quote(each.argument)}" for each in self.sent]
        note = "# `pybackend infer` shows scores; HTTP and gRPC also give classes.\n" if self.request.classes else ""
        return note + " \\\n  ".join(lines)

    def python_http(self) -> str:
        if self.decoupled:
            return "# A model that streams needs gRPC, or generate."
        if self.server.url.startswith("unix:"):
            return "# tritonclient speaks no HTTP over Unix-domain sockets: see curl."
        parts = urlsplit(self.server.url)
        options = self._tls_http() if parts.scheme == "https" else ""
        return "\n".join([
            *self._imports("http"), f"client = triton.InferenceServerClient({parts.netloc + parts.path!r}{options})",
            *self._inputs(), f"result = client.infer({self._arguments()})",
            'for output in result.get_response()["outputs"]:', '    print(output["name"], result.as_numpy(output["name"]))',
        ])  # fmt: skip

    def python_grpc(self) -> str:
        options = ""
        if self.server.url.startswith("https:"):
            root = self.server.access.root
            options = f", ssl=True{f', root_certificates={str(root)!r}' if root else ''}"
        client = f"client = triton.InferenceServerClient({self.server.grpc_url!r}{options})"
        if not self.decoupled:
            return "\n".join([
                *self._imports("grpc"), client, *self._inputs(), f"result = client.infer({self._arguments()})",
                "for output in result.get_response().outputs:", "    print(output.name, result.as_numpy(output.name))",
            ])  # fmt: skip
        headers = self._header_argument()
        return "\n".join([
            "import queue", *self._imports("grpc"), client, *self._inputs(), "answers = queue.Queue()",
            f"client.start_stream(callback=lambda result, error: answers.put((result, error)){headers})",
            f"client.async_stream_infer({self._arguments(headers=False)}, enable_empty_final_response=True)",
            "while True:", "    result, error = answers.get()", "    if error is not None:", "        raise error",
            '    if result.get_response().parameters["triton_final_response"].bool_param:', "        break",
            "    for output in result.get_response().outputs:", "        print(output.name, result.as_numpy(output.name))",
            "client.stop_stream()",
        ])  # fmt: skip

    def _imports(self, protocol: str) -> list[str]:
        return [
            *(["import os", ""] if self._headers() else []),
            "import numpy as np",
            f"import tritonclient.{protocol} as triton",
            "",
        ]

    def _tls_http(self) -> str:
        access = self.server.access
        root = f", ssl_options={{'ca_certs': {str(access.root)!r}}}" if access.root else ""
        return f", ssl=True{root}{'' if access.verify else ', insecure=True'}"

    def _inputs(self) -> list[str]:
        lines = ["inputs = []"]
        for each in self.sent:
            tensor = each.tensor
            lines += [
                f"tensor = triton.InferInput({tensor.name!r}, {list(tensor.shape)}, {tensor.datatype!r})",
                f"tensor.set_data_from_numpy({each.expression})",
                "inputs.append(tensor)",
            ]
        return lines

    def _arguments(self, *, headers: bool = True) -> str:
        request = self.request
        words = [repr(request.model), "inputs"]
        if request.version:
            words.append(f"model_version={request.version!r}")
        if request.request_id:
            words.append(f"request_id={request.request_id!r}")
        if request.outputs:
            asked = ", ".join(
                f"triton.InferRequestedOutput({name!r}, class_count={request.classes.get(name, 0)})"
                for name in request.outputs
            )
            words.append(f"outputs=[{asked}]")
        words += [f"{name}={request.parameters[name]!r}" for name in _SCHEDULED if name in request.parameters]
        others = {name: value for name, value in request.parameters.items() if name not in _SCHEDULED}
        if others:
            words.append(f"parameters={others!r}")
        return ", ".join(words) + (self._header_argument() if headers else "")

    def _header_argument(self) -> str:
        prefix = {"Authorization": '"Bearer " + '}
        entries = ", ".join(
            f'{name!r}: {prefix.get(name, "")}os.environ["{variable}"]' for name, variable in self._headers()
        )
        return f", headers={{{entries}}}" if entries else ""

    def _call(self, path: str, flags: str = "-s") -> list[str]:
        access, url = self.server.access, self.server.url
        words = ["curl", flags]
        if url.startswith("unix:"):
            words, url = [*words, "--unix-socket", shlex.quote(url.removeprefix("unix:"))], "http://localhost"
        words += ["--cacert", shlex.quote(str(access.root))] if access.root else []
        words += ["--cert", shlex.quote(str(access.certificate))] if access.certificate else []
        words += ["--key", shlex.quote(str(access.key))] if access.key else []
        words += self.server.insecure
        lines = [" ".join([*words, shlex.quote(url + path)])]
        for name, variable in self._headers():
            value = f"Bearer ${variable}" if name == "Authorization" else f"${variable}"
            lines.append(f'-H "{name}: {value}"')
        return lines

    def _headers(self) -> list[tuple[str, str]]:
        """Names of the headers that calls need, and of the variables with their values."""
        names = self.server.access.headers
        return [(name, _KEY if name == "Authorization" else re.sub(r"\W", "_", name).upper()) for name in names]
