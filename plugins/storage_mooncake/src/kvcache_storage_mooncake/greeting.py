"""Whether a master of Mooncake Store answers at an address, asked without the library: that tries a dead one for most of a
minute, and holds the interpreter's lock meanwhile, so that no deadline helps.

The question is a call of a function that no master has, in the framing of its RPC (coro_rpc, version 0): a master answers that it
has none.
"""

import socket
import struct
from typing import Final

_MAGIC: Final = 21
_QUESTION: Final = struct.pack("<BBBBIIII", _MAGIC, 0, 0, 0, 1, 0xFFFFFFFF, 0, 0)
"""Magic, version, two kinds, number of the call, number of the function, two lengths of nothing."""


def greet(address: tuple[str, int], timeout: float) -> str:
    """Gives this machine's address on the way to the master. Raises OSError: nobody answers there, or somebody else."""
    with socket.create_connection(address, timeout=timeout) as way:
        way.sendall(_QUESTION)
        try:
            answer = way.recv(1)
        except TimeoutError:
            raise TimeoutError(f"whoever listens there did not answer within {timeout:g} s") from None
        if answer != bytes([_MAGIC]):
            raise ConnectionError("whoever listens there is no mooncake_master")
        return way.getsockname()[0]
