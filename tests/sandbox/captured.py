"""The program of a front end that somebody has captured: it tries what it must not do, and tells what it got.

``main`` runs in the sandbox of a front end, in the place of :mod:`pybackend.front_end`.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile

_libc = ctypes.CDLL(None, use_errno=True)
_PTRACE_ATTACH, _PR_SET_PDEATHSIG = 16, 1
_SO_ATTACH_REUSEPORT_CBPF, _TCP_FASTOPEN_CONNECT, _SIOCGIFCONF = 51, 30, 0x8912
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)

_listening: socket.socket


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read_a_file():
    with open("/etc/passwd", "rb") as file:
        return repr(file.read(8))


def list_a_directory():
    return os.listdir("/")


def read_its_own_program():
    with open(__file__, "rb") as file:
        return repr(file.read(8))


def look_at_the_server():
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:
        return repr(file.read(8))


def write_a_file():
    with tempfile.TemporaryFile() as file:
        return file.write(b"mine")


def make_a_directory():
    os.mkdir("/tmp/captured")
    return "made"


def run_a_program():
    return subprocess.run(["/bin/true"], check=False).returncode


def become_a_program():
    os.execv("/bin/true", ["true"])


def run_from_memory():
    descriptor = os.memfd_create("program")
    os.write(descriptor, b"#!/bin/true\n")
    os.execve(descriptor, ["program"], {})


def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def make_a_tcp_socket():
    return socket.socket(socket.AF_INET).fileno()


def make_a_udp_socket():
    return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).fileno()


def make_a_unix_socket():
    return socket.socket(socket.AF_UNIX).fileno()


def make_a_raw_socket():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno()


def disconnect_a_client():
    """The first half of reaching another address with the socket of a client."""
    connection, _ = _listening.accept()
    return _checked(_libc.connect(connection.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)))


def send_a_clients_data_elsewhere():
    connection, _ = _listening.accept()
    return connection.sendto(b"mine", socket.MSG_FASTOPEN, _listening.getsockname())


def send_a_clients_message_elsewhere():
    connection, _ = _listening.accept()
    return connection.sendmsg([b"mine"], [], socket.MSG_FASTOPEN)


def connect_by_sending():
    connection, _ = _listening.accept()
    return connection.setsockopt(socket.IPPROTO_TCP, _TCP_FASTOPEN_CONNECT, 1)


def bind_a_clients_connection():
    connection, _ = _listening.accept()
    return connection.bind(("127.0.0.1", 0))


def connect_its_listener():
    return _checked(_libc.connect(_listening.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)))


def shut_its_listener_down():
    return _listening.shutdown(socket.SHUT_RDWR)


def let_nobody_wait():
    return _listening.listen(0)


def take_the_clients_of_all_front_ends():
    """A program of the kernel's classic BPF machine chooses the socket to which a connection goes: its own, by always
    answering 0."""
    answer = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
    program = struct.pack("@HP", 1, ctypes.addressof(answer))
    return _listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def take_clients_of_its_core():
    return _listening.setsockopt(socket.SOL_SOCKET, socket.SO_INCOMING_CPU, 0)


def read_the_machines_addresses():
    return fcntl.ioctl(_listening, _SIOCGIFCONF, bytes(16))


def trace_the_server():
    return _checked(_libc.ptrace(_PTRACE_ATTACH, os.getppid(), 0, 0))


def read_the_servers_memory():
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buffer), 8)
    remote = struct.pack("QQ", ctypes.addressof(buffer), 8)
    return _checked(_libc.process_vm_readv(os.getppid(), local, 1, remote, 1, 0))


def kill_the_server():
    os.kill(os.getppid(), signal.SIGTERM)
    return "sent"


def become_root():
    """Without a privilege, so what counts is what the superuser reads."""
    os.setuid(0)
    with open("/etc/shadow", "rb") as file:
        return repr(file.read(1))


def outlive_the_server():
    return _checked(_libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0))


def make_a_namespace():
    return _checked(_libc.unshare(0x10000000))


ATTACKS = [
    read_a_file,
    list_a_directory,
    read_its_own_program,
    look_at_the_server,
    write_a_file,
    make_a_directory,
    run_a_program,
    become_a_program,
    run_from_memory,
    fork,
    make_a_tcp_socket,
    make_a_udp_socket,
    make_a_unix_socket,
    make_a_raw_socket,
    disconnect_a_client,
    send_a_clients_data_elsewhere,
    send_a_clients_message_elsewhere,
    connect_by_sending,
    bind_a_clients_connection,
    let_nobody_wait,
    take_the_clients_of_all_front_ends,
    take_clients_of_its_core,
    read_the_machines_addresses,
    connect_its_listener,
    shut_its_listener_down,
    trace_the_server,
    read_the_servers_memory,
    kill_the_server,
    become_root,
    outlive_the_server,
    make_a_namespace,
]


def main(arguments):
    """Try everything, and send what it got, by attack; the first descriptor is a socket, the second one listens."""
    global _listening
    told = socket.socket(fileno=int(arguments[0]))
    _listening = socket.socket(fileno=int(arguments[1]))
    got = {}
    for attack in ATTACKS:
        try:
            got[attack.__name__] = repr(attack())
        except OSError as error:
            got[attack.__name__] = f"stopped: {error.strerror}"
    told.sendall(json.dumps(got).encode())
    client, _ = _listening.accept()
    client.sendall(b"served")
    return 0
