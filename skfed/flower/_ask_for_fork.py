"""Asks the process of ``skfed.flower.warm`` for a fork; run as a file, which imports little."""

import os
import socket
import sys


def main() -> None:
    """Send the arguments of a command, or run it here if there is no such process, or no fork."""
    folder, command, *arguments = sys.argv[1:]
    try:
        # The path of a socket may have 107 bytes alone.
        descriptor = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{descriptor}/socket")
            connection.sendall(os.fsencode("".join(f"{one}\0" for one in arguments)))
            connection.shutdown(socket.SHUT_WR)
            if connection.recv(1):
                return
    except OSError:
        pass
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    main()
