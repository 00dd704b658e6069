"""Records when packets of 20 ms arrive: sent by one process, received by another, both with the lowest priority, on
whatever this machine does meanwhile. Writes a line for each packet: its number and its arrival in microseconds, the first
one at zero.

    nice -n 19 python3 record_trace.py SECONDS >trace.csv
"""

import multiprocessing
import socket
import struct
import sys
import time

PACKET = 0.02


def send(address, packets):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        began = time.monotonic()
        for number in range(packets):
            time.sleep(max(0.0, began + number * PACKET - time.monotonic()))
            out.sendto(struct.pack("!I", number), address)


def main():
    packets = int(float(sys.argv[1]) / PACKET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        sender = multiprocessing.Process(target=send, args=(receiver.getsockname(), packets))
        sender.start()
        began = None
        for _ in range(packets):
            (number,) = struct.unpack("!I", receiver.recv(16))
            now = time.monotonic()
            began = began or now
            print(f"{number},{round((now - began) * 1e6)}")
        sender.join()


if __name__ == "__main__":
    main()
