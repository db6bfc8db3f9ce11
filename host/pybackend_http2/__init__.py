"""HTTP/2 (RFC 9113), the server's end, without input and output: bytes in, calls of receivers; calls, bytes out.

It stands between a transport and a front end, and knows neither sockets nor asyncio nor gRPC. It imports no other
package of the server.

Use:

1. Make a :class:`ServerConnection` with a :class:`ConnectionReceiver` and a :class:`Config`. Give what the socket
   delivers to ``connection.receive(data, offset)``, which processes a few frames, until it has all. For each request it
   calls ``on_request(stream, head, ended)``, which returns the :class:`StreamReceiver` that hears the rest:
   ``on_data``, ``on_trailers``, ``on_reset``, ``on_drained``. Small requests with a known head come in one call of
   ``on_whole_request`` if the receiver has set ``head.takes_whole``.
2. Answer with methods of the :class:`Stream`: ``send_headers``, ``send_data``, ``send_trailers``; or ``respond`` for a
   whole small answer, or ``respond_in`` for one that repeats a form, which is the fastest. Heads and trailers are
   :class:`HeaderBlock` objects: make those that repeat once per process. Answers may come inside the receivers' methods
   or at any later time.
3. Whenever the transport has room and ``connection.has_output`` is true (after ``receive``, and after answers), write
   ``connection.take_output()``; once per turn of an event loop is enough. Leave the output where it is while the
   transport is full, and stop calling ``receive`` too: then the client's windows fill, and nothing grows.
4. Give back the bytes that ``on_data`` delivered with ``stream.give_back(count)`` once they are used. Unless they are
   given back, the client may send ``Config.stream_window_bytes`` on a stream and ``Config.connection_window_bytes`` on
   all of them, and then waits. That bounds memory, and holds back the client of a slow model.
5. ``stream.send_data`` returns False if data must wait for the client's windows; ``on_drained`` says when the last of
   it was taken. Call ``connection.stalled_streams()`` regularly and reset the streams it returns, and
   ``connection.time_passed(seconds)``.
6. ``receive`` raises :class:`RemoteProtocolError` if the client broke a rule for the whole connection: write the
   output, close the transport. However a transport ends, call ``connection.connection_lost()``.
7. To stop: ``begin_shutdown()``, wait until ``is_finished``; with a deadline, ``finish_shutdown()`` and at last
  ``close()``.

A payload that is still arriving may be read from the socket into memory of the user's choice: see ``expected_payload``.

An exception that a receiver raises passes through ``receive`` and leaves the connection in no defined state: close it.
"""

from pybackend_http2.connection import ServerConnection
from pybackend_http2.core import ConnectionReceiver
from pybackend_http2.errors import ErrorCode, LocalProtocolError, RemoteProtocolError, StreamError
from pybackend_http2.fields import Use
from pybackend_http2.header_block import AnswerForm, HeaderBlock, encode_request
from pybackend_http2.request_head import Fields, RequestHead
from pybackend_http2.settings import Config, PingRules
from pybackend_http2.stream import Stream, StreamReceiver, StreamState

__all__ = [
    "AnswerForm",
    "Config",
    "ConnectionReceiver",
    "ErrorCode",
    "Fields",
    "HeaderBlock",
    "LocalProtocolError",
    "PingRules",
    "RemoteProtocolError",
    "RequestHead",
    "ServerConnection",
    "Stream",
    "StreamError",
    "StreamReceiver",
    "StreamState",
    "Use",
    "encode_request",
]
