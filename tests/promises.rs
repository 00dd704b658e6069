//! Black-box tests: a running server, real clients, other people's programs. One module per capability, one test per
//! promise or reported bug.

// A test that cannot go on shall stop.
#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value)]

mod auth;
mod bench;
mod book;
mod carriers;
mod codecs;
mod command_line;
mod console;
mod dialect;
mod disk_full;
mod emulate;
mod examples;
mod harness;
mod inspect;
mod libraries;
mod lifecycle;
mod limits;
mod local_models;
mod local_stt;
mod local_tts;
mod models;
mod neural_voice;
mod openai;
mod openapi;
mod realtime;
mod recordings;
mod recordings_command;
mod reload;
mod rooms;
mod routes;
mod s3;
mod session;
mod socket_edge;
mod speak;
mod systemd;
mod takeover;
mod telemetry;
mod telephone;
mod tls;
mod trust;
mod vendors;
mod voices;
mod webhooks;
mod wyoming;
