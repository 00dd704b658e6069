//! What the service manager is told of the server's state, by `sd_notify`: that it serves, reloads its settings, stops, and
//! which process is the main one. Without `NOTIFY_SOCKET`, as in a terminal, nobody is told.

use std::time::Duration;

use sd_notify::NotifyState;

const SERVES: NotifyState<'static> = NotifyState::Status("serves");

/// It serves. A server that has replaced another one of the same unit is its main process from now on.
pub(super) fn serves() {
    let main = NotifyState::MainPid(std::process::id());
    tell(&[main, NotifyState::Ready, SERVES]);
}

/// It reads its settings again, until [`reloaded`].
pub(super) fn reloads() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the clock cannot be read"),
    }
}

/// It serves with the settings that it has read, or else with those that it had.
pub(super) fn reloaded(taken: bool) {
    let status = if taken {
        SERVES
    } else {
        NotifyState::Status(
            "serves; the settings were to be reloaded, and were refused: see the log",
        )
    };
    // Not which process is the main one: a server that was replaced may be told to reload as well.
    tell(&[NotifyState::Ready, status]);
}

/// It has begun to stop, and has ended within `patience`, however long the manager would otherwise wait.
pub(super) fn stops(patience: Duration) {
    let extended = format!("EXTEND_TIMEOUT_USEC={}", patience.as_micros());
    tell(&[
        NotifyState::Stopping,
        NotifyState::Custom(&extended),
        NotifyState::Status("finishes the work in progress"),
    ]);
}

/// Another server has taken over. That is no stop: the manager would limit what is left to do.
pub(super) fn replaced() {
    tell(&[NotifyState::Status(
        "another server has taken over; finishes the sessions, rooms and calls that it has",
    )]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told of the server's state");
    }
}
