//! `vivavoce emulate`: emulates the vendors' servers on this machine, until SIGTERM or Ctrl-C.

use std::io::Write;

use clap::Args;

use super::{ConfigArgs, Failure, load, runtime};
use crate::emulators::clock::Clock;
use crate::emulators::engine::Engine;
use crate::emulators::faults::Fault;
use crate::emulators::{Emulators, Settings};
use crate::providers::local;
use crate::server::{self, StopSignal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce emulate                                   hear and speak with the local engines\n  \
    vivavoce emulate --scripted --speed 10             tone-words, and ten times faster limits\n  \
    vivavoce emulate --fault 'deepgram:stt:close=1011@3s' --fault 'any:tts:status=429,retry=7*2'\n\n\
    A fault is VENDOR:DIRECTION:FAULT[=VALUE][@TIME][*TIMES]: deepgram, elevenlabs, google, azure, cartesia, openai or any; stt, \
    tts, voices or any; TIME after the connection was opened; the first TIMES connections only. FAULT is one of:\n  \
    refuse                     reset instead of an answer\n  \
    status=429[,retry=7]       refused, with Retry-After in seconds (retry-date: as a date)\n  \
    slow=2s                    the first message leaves later\n  \
    trickle=300ms              one message in this time at most\n  \
    stall=5s                   nothing leaves for so long\n  \
    burst=1s                   messages leave together, once in this time\n  \
    close[=1011[,REASON]]      closed with this code (1005: none; 1006: no frame)\n  \
    reset                      the connection is reset\n  \
    half-open                  nothing is sent or read any more, and no end is seen\n  \
    truncate                   the connection ends within a message\n  \
    odd                        sound is cut within samples, its last byte is missing\n  \
    empty                      an empty piece of sound before each piece\n  \
    late=2s                    finals come later\n  \
    limit=20s                  the vendor's limit of a stream\n\n\
    While it runs: GET, POST {\"faults\": [\"...\"]} and DELETE /control/faults; GET and DELETE /control/log tells what \
    each connection sent and got. Keys that begin with \"bad\" are always refused.")]
pub(super) struct Arguments {
    /// Port for HTTP and WebSocket; 0 picks a free one
    #[arg(short, long, default_value_t = 3101)]
    port: u16,
    /// Port for the same with TLS, signed by a CA of its own; 0 picks a free one
    #[arg(long, default_value_t = 3102, value_name = "PORT")]
    tls_port: u16,
    /// Port for gRPC, without TLS (h2c) or with it; 0 picks a free one
    #[arg(long, default_value_t = 3103, value_name = "PORT")]
    grpc_port: u16,
    /// Recognise and synthesise tone-words, a fixed sound for each number, instead of speech
    #[arg(long)]
    scripted: bool,
    /// How many times faster than real time limits, keep-alives and delays run
    #[arg(long, default_value = "1", value_name = "TIMES", value_parser = clock)]
    speed: Clock,
    /// A fault to inject (see below); may be repeated
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// The only key to accept; default: any
    #[arg(long)]
    key: Option<String>,
}

fn clock(text: &str) -> Result<Clock, String> {
    let speed: f64 = text.parse().map_err(|_| "must be a number")?;
    Clock::new(speed).map_err(|error| error.to_string())
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let config = load(config, &[])?;
    runtime()?.block_on(async {
        // Signals are caught before the ports are announced, so that an early one is not lost.
        let mut stop = StopSignal::listen().map_err(Failure::work)?;
        let engine = if arguments.scripted {
            Engine::Scripted
        } else {
            let providers = server::providers(&config.settings).map_err(Failure::work)?;
            let stt = providers.speech_to_text(local::SLUG);
            let tts = providers.text_to_speech(local::SLUG);
            let engines = stt.zip(tts).map(|(stt, tts)| Engine::Local { stt, tts });
            engines.ok_or_else(|| Failure::work("there are no local engines"))?
        };
        let settings = Settings {
            port: arguments.port,
            tls_port: arguments.tls_port,
            grpc_port: arguments.grpc_port,
            clock: arguments.speed,
            faults: arguments.faults.clone(),
            key: arguments.key.clone(),
            ..Settings::new(engine)
        };
        let emulators = Emulators::start(settings).await.map_err(Failure::work)?;
        // A closed standard output does not prevent serving.
        let _ = std::io::stdout()
            .lock()
            .write_all(emulators.hints().as_bytes());
        stop.received().await;
        emulators.stop().await;
        Ok(())
    })
}
