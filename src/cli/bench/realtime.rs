//! `vivavoce bench realtime`: conversations over OpenAI's Realtime interface, with a language model and a voice that cost
//! nothing: how much later the first sound of an answer comes than the model's last token, and what a conversation costs.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::Message;

use super::load::{SessionError, socket_config};
use super::sessions::raise_file_limit;
use super::under_test::{Cores, UnderTest};
use super::{ConfigArgs, Failure};

/// A turn of each conversation.
const CYCLE: Duration = Duration::from_secs(4);
/// The frames that each conversation sends.
const FRAME: Duration = Duration::from_millis(20);
const FRAME_BYTES: usize = 960;
/// What the model says: 2 s of speech of the voice that costs nothing.
const WORDS: [&str; 6] = ["This ", "is ", "what ", "the ", "model ", "says, no?"];

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce bench realtime                            100 conversations\n  \
    vivavoce bench sessions --sessions 100             the plain sessions beside them\n\n\
    Each conversation sends 20 ms frames of 24 kHz, and asks in writing for an answer every 4 s, which the model writes \
    at once and the voice says in 2 s. The delay is from the model's last token to the first sound at the client.")]
pub(super) struct Arguments {
    /// Concurrent conversations
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conversations: u32,
    /// Seconds to measure, after a warm-up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
}

/// When the model's last token of each answer was sent, by what was asked.
#[derive(Default)]
struct Tokens(Mutex<HashMap<String, Instant>>);

impl Tokens {
    fn sent(&self, asked: String) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.insert(asked, Instant::now());
    }

    fn take(&self, asked: &str) -> Option<Instant> {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.remove(asked)
    }
}

/// What all conversations have seen.
#[derive(Default)]
struct Seen {
    delays: Mutex<Vec<Duration>>,
    failures: Mutex<Vec<String>>,
}

pub(super) fn run(config: &ConfigArgs, arguments: &Arguments) -> Result<(), Failure> {
    let cores = Cores::divide().map_err(Failure::work)?;
    if cores.is_none() {
        eprintln!("there is one core only: the load slows the server down");
    }
    let runtime = super::runtime(cores.as_ref()).map_err(Failure::work)?;
    let stop = super::stop_token(&runtime).map_err(Failure::work)?;
    let count = arguments.conversations as usize;
    raise_file_limit(2 * count)?;
    let tokens = Arc::<Tokens>::default();
    let model = runtime
        .block_on(serve_model(Arc::clone(&tokens)))
        .map_err(Failure::work)?;
    let settings = server_arguments(config, count, &model);
    let start = || UnderTest::start(&settings);
    let server = match &cores {
        Some(cores) => cores.on_server_core(start).map_err(Failure::work)?,
        None => start(),
    };
    let server = server.map_err(Failure::work)?;
    let seen = Arc::<Seen>::default();
    let measured = runtime.block_on(async {
        for number in 0..count {
            let url = format!("ws://{}/v1/realtime?model=gpt-realtime", server.address);
            let (tokens, seen) = (Arc::clone(&tokens), Arc::clone(&seen));
            // They ask one after the other.
            let first = CYCLE.mul_f64(number as f64 / count as f64);
            tokio::spawn(async move {
                if let Err(error) = converse(&url, number, first, &tokens, &seen).await {
                    let mut failures = seen.failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(error.to_string());
                }
            });
        }
        eprintln!("warming up for {} s", 2 * CYCLE.as_secs());
        tokio::select! {
            () = sleep(2 * CYCLE) => {}
            () = stop.cancelled() => return Ok(None),
        }
        seen.delays
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let before = server.usage().map_err(Failure::work)?;
        let began = Instant::now();
        eprintln!("measuring for {} s", arguments.seconds);
        tokio::select! {
            () = sleep(Duration::from_secs(arguments.seconds.into())) => {}
            () = stop.cancelled() => {}
        }
        let after = server.usage().map_err(Failure::work)?;
        Ok(Some((before, after, began.elapsed())))
    })?;
    let Some((before, after, took)) = measured else {
        return Ok(());
    };
    let mut delays = seen
        .delays
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    delays.sort_unstable();
    let quantile = |share: f64| {
        let at = ((delays.len() as f64 * share) as usize).min(delays.len().saturating_sub(1));
        delays.get(at).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    let cpu = (after.cpu.saturating_sub(before.cpu)).as_secs_f64() / took.as_secs_f64();
    tell!(
        "{count} conversations, {} answers in {:.1} s",
        delays.len(),
        took.as_secs_f64()
    );
    tell!(
        "last token to first sound: p50 {:.1} ms, p99 {:.1} ms",
        quantile(0.5),
        quantile(0.99)
    );
    tell!(
        "server: {:.1} % of a core, {:.3} % each; {:.0} MB",
        cpu * 100.0,
        cpu * 100.0 / count as f64,
        after.own_bytes as f64 / 1e6
    );
    let failures = seen.failures.lock().unwrap_or_else(PoisonError::into_inner);
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(Failure::work(format!(
            "{} conversations failed, the first with: {first}",
            failures.len()
        ))),
    }
}

fn server_arguments(config: &ConfigArgs, count: usize, model: &str) -> Vec<String> {
    let serve = [
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--data-dir",
        "data",
    ];
    let mut arguments: Vec<String> = serve.map(str::to_owned).into();
    let own = [
        "server.workers=1".to_owned(),
        "providers.null.enabled=true".to_owned(),
        "cache.enabled=false".to_owned(),
        "log.level=warn".to_owned(),
        format!("limits.sessions={count}"),
        format!("limits.unconfigured_sockets={}", count.saturating_mul(4)),
        "limits.connections_per_address=0".to_owned(),
        format!("limits.syntheses_per_provider={count}"),
        format!("llm.url=http://{model}/v1"),
        "llm.model=null".to_owned(),
        "openai.realtime_stt=null".to_owned(),
        "openai.realtime_tts=null".to_owned(),
    ];
    let callers = config
        .set
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    for setting in own.into_iter().chain(callers) {
        arguments.extend(["--set".to_owned(), setting]);
    }
    arguments
}

/// A language model that answers at once; returns where it is.
async fn serve_model(tokens: Arc<Tokens>) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let tokens = Arc::clone(&tokens);
            // A connection ends with its client.
            tokio::spawn(async move { answer(connection, &tokens).await });
        }
    });
    Ok(address)
}

async fn answer(connection: TcpStream, tokens: &Tokens) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (read, mut write) = connection.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body).await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let messages = body["messages"]
            .as_array()
            .and_then(|all| all.last().cloned());
        let asked = messages.unwrap_or_default()["content"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
        for word in WORDS {
            let chunk = json!({"choices": [{"delta": {"content": word}}]});
            let event = format!("data: {chunk}\n\n");
            text.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
        }
        write.write_all(text.as_bytes()).await?;
        tokens.sent(asked);
        let done =
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        let end = format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len());
        write.write_all(end.as_bytes()).await?;
    }
}

/// One conversation, until it fails.
async fn converse(
    url: &str,
    number: usize,
    first: Duration,
    tokens: &Tokens,
    seen: &Seen,
) -> Result<(), SessionError> {
    let (socket, _) = connect_async_with_config(url, Some(socket_config()), true).await?;
    let (mut sink, mut events) = socket.split();
    let session = json!({"type": "session.update", "session": {
        "type": "realtime", "audio": {"input": {"turn_detection": null}},
    }});
    sink.send(Message::text(session.to_string())).await?;
    let frame = json!({
        "type": "input_audio_buffer.append", "audio": BASE64.encode(vec![0; FRAME_BYTES]),
    });
    let frame = Message::text(frame.to_string());
    let begin = Instant::now();
    let mut frames = interval_at(begin + FRAME.mul_f64(number as f64 % 10.0 / 10.0), FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut turns = interval_at(begin + CYCLE / 2 + first, CYCLE);
    let (mut turn, mut asked) = (0_u64, None);
    loop {
        tokio::select! {
            _ = frames.tick() => sink.send(frame.clone()).await?,
            _ = turns.tick() => {
                turn += 1;
                let text = format!("conversation {number}, turn {turn}");
                let item = json!({"type": "conversation.item.create", "item": {
                    "type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": text}],
                }});
                sink.send(Message::text(item.to_string())).await?;
                sink.send(Message::text("{\"type\":\"response.create\"}")).await?;
                asked = Some(text);
            }
            event = events.next() => {
                let now = Instant::now();
                let text = match event {
                    None => return Err(SessionError::Closed(String::new())),
                    Some(Ok(Message::Text(text))) => text,
                    Some(message) => {
                        super::load::check_open(&message?)?;
                        continue;
                    }
                };
                if text.contains("\"type\":\"error\"") {
                    return Err(SessionError::Refused(text.to_string()));
                }
                if text.contains("response.output_audio.delta")
                    && let Some(asked) = asked.take()
                    && let Some(sent) = tokens.take(&asked)
                {
                    let mut delays = seen.delays.lock().unwrap_or_else(PoisonError::into_inner);
                    delays.push(now.saturating_duration_since(sent));
                }
            }
        }
    }
}
