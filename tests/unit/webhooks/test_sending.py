from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from time import monotonic

import pytest
from guarded.receiver import receiving, resolve_to

from oncelery import DeliveryError, WebhookTargetError
from oncelery.webhooks import sending
from oncelery.webhooks.sending import send
from oncelery.webhooks.target import Target, target_of


def local(url: str) -> Target:
    return target_of(url, private=True)


def test_a_call_back_is_posted_to_its_path_under_the_name_of_its_host() -> None:
    with receiving() as receiver:
        status = send(local(f"http://localhost:{receiver.port}/hook?a=1"), b'{"a":1}', {"webhook-id": "1"})

    assert status == 204
    (call,) = receiver.calls
    assert (call.path, call.body, call.headers["host"]) == ("/hook?a=1", b'{"a":1}', f"localhost:{receiver.port}")


def test_a_redirect_is_not_followed() -> None:
    with (
        receiving() as inside,
        receiving([307], location=inside.url()) as receiver,
        pytest.raises(DeliveryError, match="answered 307"),
    ):
        send(local(receiver.url()), b"{}", {})

    assert len(receiver.calls) == 1
    assert not inside.calls


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_refusal_may_pass(status: int) -> None:
    with receiving([status]) as receiver, pytest.raises(DeliveryError, match=str(status)):
        send(local(receiver.url()), b"{}", {})


def test_a_receiver_that_is_gone_is_not_called_again() -> None:
    with receiving([410]) as receiver, pytest.raises(WebhookTargetError, match="no more call-backs"):
        send(local(receiver.url()), b"{}", {})


#: What each kind of receiver begins with: an answer; or, in TLS, a record of the handshake that goes on for 16 KiB.
@pytest.mark.parametrize(("scheme", "begins"), [("http", b"H"), ("https", b"\x16\x03\x03\x40\x00")])
def test_a_receiver_that_answers_byte_by_byte_is_cut_off(scheme: str, begins: bytes) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.send(begins)
                while not stop.wait(0.05):
                    try:
                        connection.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        started = monotonic()

        with pytest.raises(DeliveryError):
            send(local(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/"), b"{}", {}, seconds=0.5)

        assert monotonic() - started < 10
        stop.set()
        thread.join()


def test_the_handshake_has_what_connecting_has_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, taken = socket.create_connection, [0.0]
    left: list[float] = []

    def connect_slowly(place: tuple[str, int], seconds: float) -> socket.socket:
        taken.append(sending.SECONDS - 1.0)
        return connect(place, seconds)

    def shake(_context: ssl.SSLContext, plain: socket.socket, **_: object) -> None:
        left.append(plain.gettimeout() or 0.0)
        raise ssl.SSLError

    monkeypatch.setattr(sending, "monotonic", lambda: monotonic() + taken[-1])
    monkeypatch.setattr(socket, "create_connection", connect_slowly)
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", shake)
    with receiving() as receiver, pytest.raises(DeliveryError, match="SSLError"):
        send(local(f"https://127.0.0.1:{receiver.port}/"), b"{}", {})

    (seconds,) = left
    assert 0 < seconds <= 1.0


def test_a_certificate_that_is_not_the_host_s_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []

    def shake(self: ssl.SSLContext, *_: object, server_hostname: str, **__: object) -> None:
        assert self.check_hostname
        assert self.verify_mode is ssl.CERT_REQUIRED
        named.append(server_hostname)
        raise ssl.SSLCertVerificationError(1, "hostname mismatch")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", shake)
    with receiving() as receiver, pytest.raises(DeliveryError, match="SSLCertVerificationError"):
        send(local(f"https://localhost:{receiver.port}/"), b"{}", {})

    # As many times as the name has addresses.
    assert set(named) == {"localhost"}
    assert len(named) <= sending.ADDRESSES_TRIED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_over_tls_the_checked_address_is_called_under_the_name_that_its_certificate_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example"]
    make += ["-addext", "subjectAltName=DNS:hooks.example", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    resolve_to(monkeypatch, "127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(certificate))

    with receiving(certificate=(certificate, key)) as receiver:
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            send(local(f"https://hooks.example:{receiver.port}/"), b"{}", {})
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
        assert send(local(f"https://hooks.example:{receiver.port}/hook"), b"{}", {}) == 204
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            send(local(f"https://other.example:{receiver.port}/hook"), b"{}", {})

    assert [call.headers["host"] for call in receiver.calls] == [f"hooks.example:{receiver.port}"]
