//! A vendor that does not exist, in as few lines as one can be written, and what every vendor gets for nothing.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message as Sent};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::engine::{Heard, Listening};
use super::socket::{Message, Socket, accept};
use super::speech::Saying;
use super::tone_words::{GAP, WORD, speak};
use super::visit::Record;
use super::*;
use vivavoce_audio::{AudioFormat, Encoding, SampleRate, linear16};

const RATE: SampleRate = SampleRate::HZ_16000;
const FORMAT: AudioFormat = AudioFormat::mono(Encoding::Linear16, RATE);

fn sample(service: &mut web::ServiceConfig) {
    service
        .route("/hear", web::get().to(hear))
        .route("/say", web::post().to(say));
}

fn key(request: &HttpRequest) -> Option<&str> {
    visit::header_credential(request, "authorization")
}

async fn hear(
    request: HttpRequest,
    payload: web::Payload,
    emulation: web::Data<Emulation>,
) -> Result<HttpResponse, actix_web::Error> {
    let visit = emulation.visit(&request, Vendor::Deepgram, Direction::Stt);
    if let Err(refusal) = visit.admit(key(&request)) {
        return Ok(refusal.response().body("no"));
    }
    accept(&request, payload, visit, recognise)
}

async fn recognise(socket: &mut Socket) {
    let listening = Listening {
        format: FORMAT,
        endpointing: Some(Duration::from_millis(300)),
    };
    let Ok(mut recogniser) = socket.visit().listen(listening).await else {
        return socket.close(1011, "no engine").await;
    };
    let limit = socket.visit().stream_limit(None);
    let mut idle = socket.visit().timer(Duration::from_secs(10));
    loop {
        tokio::select! {
            message = socket.recv() => {
                idle.restart();
                match message {
                    Some(Message::Binary(audio)) if recogniser.push(&audio).await.is_ok() => {}
                    Some(Message::Text(text)) if text == "end" => recogniser.finish().await,
                    Some(Message::Binary(_) | Message::Text(_)) => return socket.close(1003, "what?").await,
                    Some(Message::Close { .. }) | None => return,
                }
            }
            heard = recogniser.next() => match heard {
                Some(Ok(Heard::Final(transcript))) => {
                    if socket.send_text(transcript.text).await.is_err() {
                        return;
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) => return socket.close(1011, "engine").await,
                None => return socket.close(1000, "done").await,
            },
            () = limit.expired() => return socket.close(1008, "limit").await,
            () = idle.expired() => return socket.close(1011, "idle").await,
        }
    }
}

async fn say(request: HttpRequest, text: String, emulation: web::Data<Emulation>) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::Cartesia, Direction::Tts);
    if let Err(refusal) = visit.admit(key(&request)) {
        return refusal.response().body("no");
    }
    let saying = Saying {
        speaking_rate: 1.0,
        format: FORMAT,
    };
    match visit.say(&text, &saying) {
        Ok(speech) => visit.stream(HttpResponse::Ok(), speech.bytes()),
        Err(error) => HttpResponse::BadRequest().body(error.to_string()),
    }
}

async fn emulators(faults: &[&str]) -> Emulators {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut settings = Settings::new(Engine::Scripted);
    settings.faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
    Emulators::start_with(settings, sample).await.unwrap()
}

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn dial(emulators: &Emulators, key: &str) -> Result<Client, tungstenite::Error> {
    use tungstenite::client::IntoClientRequest;
    let url = format!("ws://{}/hear?token=secret&model=best", emulators.plain);
    let mut request = url.into_client_request().unwrap();
    let key = format!("Token {key}").parse().unwrap();
    request.headers_mut().insert("authorization", key);
    Ok(tokio_tungstenite::connect_async(request).await?.0)
}

fn sound(numbers: &[u16]) -> Vec<i16> {
    numbers
        .iter()
        .flat_map(|&number| speak(number, RATE))
        .collect()
}

/// Says the words and then the end; what comes back, to the last.
async fn conversation(
    client: &mut Client,
    numbers: &[u16],
) -> Vec<Result<Sent, tungstenite::Error>> {
    for chunk in linear16::encode(&sound(numbers)).chunks(641) {
        if client
            .send(Sent::binary(Bytes::copy_from_slice(chunk)))
            .await
            .is_err()
        {
            break;
        }
    }
    let _ = client.send(Sent::text("end")).await;
    client.collect().await
}

fn texts(messages: &[Result<Sent, tungstenite::Error>]) -> Vec<String> {
    let texts = messages
        .iter()
        .flatten()
        .filter(|message| message.is_text());
    texts
        .map(|text| text.to_text().unwrap().to_owned())
        .collect()
}

fn closed(messages: &[Result<Sent, tungstenite::Error>]) -> Option<(CloseCode, String)> {
    messages.iter().flatten().find_map(|message| match message {
        Sent::Close(Some(frame)) => Some((frame.code, frame.reason.to_string())),
        _ => None,
    })
}

/// The record of the first connection, once it has ended.
async fn ended(emulators: &Emulators) -> Record {
    loop {
        let record = emulators.emulation.log.all().remove(0);
        if record.lasted_ms.is_some() {
            return record;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn words_in_are_words_out_and_are_in_the_record() {
    let emulators = emulators(&[]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    let messages = conversation(&mut client, &[12, 4711, 9999]).await;
    assert_eq!(texts(&messages), ["12 4711 9999"]);
    assert_eq!(
        closed(&messages),
        Some((CloseCode::Normal, "done".to_owned()))
    );
    drop(client);
    let record = ended(&emulators).await;
    assert_eq!(record.heard, ["12", "4711", "9999"]);
    assert_eq!((record.vendor, record.direction), ("deepgram", "stt"));
    assert_eq!(record.query[0], ("token".to_owned(), "***".to_owned()));
    assert_eq!(record.query[1], ("model".to_owned(), "best".to_owned()));
    let authorization = record
        .headers
        .iter()
        .find(|(name, _)| name == "authorization");
    assert_eq!(authorization.map(|(_, value)| value.as_str()), Some("***"));
    assert_eq!(
        record.bytes_in as usize,
        sound(&[1, 2, 3]).len() * 2 + "end".len()
    );
}

/// A conversation whose connection has a fault: what came back, and the record.
async fn faulty(fault: &str) -> (Vec<Result<Sent, tungstenite::Error>>, Record) {
    let emulators = emulators(&[fault]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    let messages = conversation(&mut client, &[1, 2]).await;
    drop(client);
    (messages, ended(&emulators).await)
}

#[tokio::test]
async fn a_bad_key_is_refused_and_so_is_another_than_the_only_one() {
    let status = |refused: Result<Client, tungstenite::Error>| match refused {
        Err(tungstenite::Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    };
    let emulators = emulators(&[]).await;
    assert_eq!(status(dial(&emulators, "bad-key").await), 401);
    let mut settings = Settings::new(Engine::Scripted);
    settings.key = Some("own".to_owned());
    let strict = Emulators::start_with(settings, sample).await.unwrap();
    assert_eq!(status(dial(&strict, "other").await), 401);
    assert!(dial(&strict, "own").await.is_ok());
}

#[tokio::test]
async fn a_status_comes_with_its_retry_after_and_goes_after_its_times() {
    let emulators = emulators(&[
        "deepgram:stt:status=429,retry=7*1",
        "any:any:status=503,retry-date=60*1",
    ])
    .await;
    for (status, retry) in [(429, "7"), (503, "GMT")] {
        let Err(tungstenite::Error::Http(response)) = dial(&emulators, "good").await else {
            panic!("not refused");
        };
        assert_eq!(response.status().as_u16(), status);
        let header = response.headers()["retry-after"].to_str().unwrap();
        assert!(header.ends_with(retry), "{header}");
    }
    assert!(dial(&emulators, "good").await.is_ok());
}

#[tokio::test]
async fn a_refused_connection_is_reset() {
    let emulators = emulators(&["any:any:refuse"]).await;
    match dial(&emulators, "good").await {
        Err(tungstenite::Error::Io(error)) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_close_has_the_code_and_reason_of_the_fault_or_of_the_vendor() {
    let (messages, _) = faulty("any:any:close=1013,try later").await;
    assert_eq!(
        closed(&messages),
        Some((CloseCode::Again, "try later".to_owned()))
    );
    let (messages, record) = faulty("any:any:close").await;
    assert_eq!(
        closed(&messages),
        Some((CloseCode::Error, "NET-0000".to_owned()))
    );
    assert_eq!(record.faults, ["close"]);
    let (messages, _) = faulty("any:any:close=1006").await;
    assert_eq!(closed(&messages), None);
    assert!(messages.last().is_some_and(Result::is_err));
}

#[tokio::test]
async fn a_reset_is_a_reset() {
    let emulators = emulators(&["any:any:reset@50ms"]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    match client.next().await {
        Some(Err(tungstenite::Error::Io(error))) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_truncated_message_is_the_last() {
    let (messages, record) = faulty("any:any:truncate").await;
    assert!(texts(&messages).is_empty() && messages.last().is_some_and(Result::is_err));
    let cut = |note: &String| note.contains("in the middle");
    assert!(record.notes.iter().any(cut), "{:?}", record.notes);
}

#[tokio::test]
async fn a_half_open_connection_neither_answers_nor_ends() {
    let emulators = emulators(&["any:any:half-open"]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    while emulators.emulation.log.all()[0].notes.is_empty() {
        tokio::task::yield_now().await;
    }
    client.send(Sent::Ping(Bytes::new())).await.unwrap();
    client.send(Sent::text("end")).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_millis(300), client.next()).await;
    assert!(heard.is_err(), "{heard:?}");
    assert_eq!(emulators.emulation.log.all()[0].lasted_ms, None);
}

#[tokio::test]
async fn late_finals_and_stalls_lose_nothing() {
    for fault in [
        "any:any:late=200ms",
        "any:any:stall=200ms",
        "any:any:burst=200ms",
        "any:any:slow=200ms",
    ] {
        let begun = Instant::now();
        let (messages, _) = faulty(fault).await;
        assert_eq!(texts(&messages), ["1 2"], "{fault}");
        assert!(begun.elapsed() >= Duration::from_millis(150), "{fault}");
    }
}

#[tokio::test]
async fn a_limit_is_the_vendors_own_goodbye() {
    let emulators = emulators(&["any:stt:limit=50ms"]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    let messages: Vec<_> = (&mut client).collect().await;
    assert_eq!(
        closed(&messages),
        Some((CloseCode::Policy, "limit".to_owned()))
    );
}

#[tokio::test]
async fn pings_are_answered_and_a_goodbye_too() {
    let emulators = emulators(&[]).await;
    let mut client = dial(&emulators, "good").await.unwrap();
    client
        .send(Sent::Ping(Bytes::from_static(b"ho")))
        .await
        .unwrap();
    let pong = client.next().await.unwrap().unwrap();
    assert_eq!(pong, Sent::Pong(Bytes::from_static(b"ho")));
    client.close(None).await.unwrap();
    while client.next().await.is_some() {}
    let record = ended(&emulators).await;
    assert_eq!(record.notes[0], "the client closed with 1005 ");
}

async fn said(emulators: &Emulators, text: &str) -> Result<Vec<u8>, reqwest::Error> {
    let request = reqwest::Client::new()
        .post(format!("http://{}/say", emulators.plain))
        .header("authorization", "Bearer good")
        .body(text.to_owned());
    let answer = request.send().await?.error_for_status()?;
    Ok(answer.bytes().await?.to_vec())
}

fn heard(bytes: &[u8]) -> Vec<u16> {
    let mut listener = super::tone_words::Listener::new(RATE);
    let mut words = listener.hear(&linear16::samples(bytes));
    words.extend(listener.finish());
    words.iter().map(|word| word.number).collect()
}

#[tokio::test]
async fn what_is_said_is_the_text() {
    let emulators = emulators(&[]).await;
    let bytes = said(&emulators, "12, then 4711!").await.unwrap();
    let then = super::tone_words::number_of("then").unwrap();
    assert_eq!(heard(&bytes), [12, then, 4711]);
    assert_eq!(ended(&emulators).await.said, ["12,", "then", "4711!"]);
}

#[tokio::test]
async fn odd_sound_lacks_its_last_byte_and_no_word() {
    let emulators = emulators(&["any:tts:odd", "any:tts:empty"]).await;
    let bytes = said(&emulators, "1 2 3").await.unwrap();
    assert_eq!(bytes.len(), sound(&[1, 2, 3]).len() * 2 - 1);
    assert_eq!(heard(&bytes), [1, 2, 3]);
}

#[tokio::test]
async fn an_answer_that_is_cut_is_not_complete() {
    for fault in ["any:tts:close", "any:tts:reset@20ms", "any:tts:truncate"] {
        let emulators = emulators(&[fault, "any:tts:slow=50ms"]).await;
        assert!(said(&emulators, "1 2 3").await.is_err(), "{fault}");
    }
}

#[tokio::test]
async fn faults_and_log_are_at_hand_while_it_runs() {
    let emulators = emulators(&[]).await;
    let url = |path: &str| format!("http://{}/control/{path}", emulators.plain);
    let client = reqwest::Client::new();
    let post = async |body: &str| {
        let request = client
            .post(url("faults"))
            .header("content-type", "application/json");
        request.body(body.to_owned()).send().await.unwrap()
    };
    assert_eq!(
        post(r#"{"faults": ["any:stt:reset", "any:any:explode"]}"#)
            .await
            .status(),
        400
    );
    let listed: serde_json::Value = post(r#"{"faults": ["any:tts:status=402*3"]}"#)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        listed,
        serde_json::json!({"faults": ["any:tts:status=402*3"]})
    );
    assert!(said(&emulators, "1").await.is_err());
    assert_eq!(
        client.delete(url("faults")).send().await.unwrap().status(),
        204
    );
    assert!(said(&emulators, "1").await.is_ok());
    let log: serde_json::Value = client
        .get(url("log"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let log = log["connections"].as_array().unwrap();
    assert_eq!(
        (&log[0]["notes"][0], &log[1]["said"][0]),
        (&"refused with 402 Payment Required".into(), &"1".into())
    );
}

#[tokio::test]
async fn tls_is_trusted_by_whoever_trusts_the_authority() {
    let emulators = emulators(&[]).await;
    let ca = std::fs::read(emulators.ca_file()).unwrap();
    let ca = reqwest::Certificate::from_pem(&ca).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only([ca])
        .build()
        .unwrap();
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{}/control/log", emulators.tls.port());
        assert_eq!(client.get(url).send().await.unwrap().status(), 200);
    }
    let folder = emulators.ca_file();
    emulators.stop().await;
    assert!(!folder.exists());
}

#[tokio::test]
async fn hints_name_every_vendor_and_leave_no_blank() {
    let emulators = emulators(&[]).await;
    let hints = emulators.hints();
    for name in [
        "DEEPGRAM_STT_URL=ws://",
        "GOOGLE_TTS_URL=http://",
        "CARTESIA_TTS_URL=",
        "GOOGLE_APPLICATION_CREDENTIALS=/",
        "\nDEEPGRAM_API_KEY=any-key\n",
        "\nAZURE_SPEECH_SUBSCRIPTION_KEY=any-key\n",
        "NODE_EXTRA_CA_CERTS=/",
    ] {
        assert!(hints.contains(name), "{hints}");
    }
    assert!(!hints.contains('<'), "{hints}");
}

/// A visit without a connection.
fn visit(faults: &[&str]) -> visit::Visit {
    let list = FaultList::default();
    for fault in faults {
        list.add(fault.parse().unwrap()).unwrap();
    }
    let emulation = Arc::new(Emulation {
        engine: Engine::Scripted,
        clock: Clock::default(),
        faults: list,
        log: Log::default(),
        key: None,
        started: Instant::now(),
    });
    emulation.visit_by(
        Vendor::Google,
        Direction::Stt,
        "Recognise",
        std::iter::empty(),
    )
}

async fn recogniser(visit: &visit::Visit, endpointing_ms: u64) -> engine::Recogniser {
    let endpointing = Some(Duration::from_millis(endpointing_ms));
    let listening = Listening {
        format: FORMAT,
        endpointing,
    };
    visit.listen(listening).await.unwrap()
}

/// Everything that is heard, as one word each.
async fn all(recogniser: &mut engine::Recogniser) -> Vec<String> {
    recogniser.finish().await;
    let mut all = Vec::new();
    while let Some(heard) = recogniser.next().await {
        all.push(match heard.unwrap() {
            Heard::SpeechStarted { .. } => "begins".to_owned(),
            Heard::Partial(transcript) => format!("{}…", transcript.text),
            Heard::Final(transcript) => transcript.text,
            Heard::EndOfSpeech { .. } => "ends".to_owned(),
            Heard::Finalized { .. } => "finalized".to_owned(),
        });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn silence_of_the_sound_ends_an_utterance_however_fast_it_comes() {
    let mut recogniser = recogniser(&visit(&[]), 500).await;
    let silence = vec![0; RATE.frames_in(Duration::from_millis(600))];
    let sound = [sound(&[1, 2]), silence, sound(&[3])].concat();
    recogniser.push(&linear16::encode(&sound)).await.unwrap();
    let heard = all(&mut recogniser).await;
    assert_eq!(
        heard,
        [
            "begins", "1…", "1 2…", "1 2", "ends", "begins", "3…", "3", "ends"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_shortest_endpointing_parts_words_and_loses_none() {
    let mut recogniser = recogniser(&visit(&[]), 10).await;
    for chunk in linear16::encode(&sound(&[1, 2])).chunks(999) {
        recogniser.push(chunk).await.unwrap();
    }
    let heard = all(&mut recogniser).await;
    assert_eq!(
        heard,
        ["begins", "1…", "1", "ends", "begins", "2…", "2", "ends"]
    );
}

#[tokio::test(start_paused = true)]
async fn finalize_is_always_answered() {
    let mut recogniser = recogniser(&visit(&[]), 500).await;
    recogniser.finalize().await;
    recogniser
        .push(&linear16::encode(&sound(&[7])))
        .await
        .unwrap();
    recogniser.finalize().await;
    let heard = all(&mut recogniser).await;
    assert_eq!(
        heard,
        ["finalized", "begins", "7…", "7", "finalized", "ends"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_utterance_becomes_final_piece_by_piece() {
    let mut recogniser = recogniser(&visit(&[]), 500).await;
    let numbers: Vec<u16> = (0..45).collect();
    recogniser
        .push(&linear16::encode(&sound(&numbers)))
        .await
        .unwrap();
    let heard = all(&mut recogniser).await;
    let finals: Vec<&str> = heard
        .iter()
        .map(String::as_str)
        .filter(|heard| !heard.ends_with('…'))
        .collect();
    assert_eq!(finals.len(), 5, "{finals:?}");
    let words: Vec<u16> = finals[1..4]
        .iter()
        .flat_map(|text| text.split(' '))
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(words, numbers);
}

#[tokio::test(start_paused = true)]
async fn late_finals_come_late_and_in_order() {
    let mut recogniser = recogniser(&visit(&["any:stt:late=2s"]), 100).await;
    let begun = Instant::now();
    recogniser
        .push(&linear16::encode(&sound(&[7])))
        .await
        .unwrap();
    assert_eq!(all(&mut recogniser).await, ["begins", "7…", "7", "ends"]);
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
}

#[tokio::test]
async fn pieces_know_their_words_and_follow_each_other() {
    let text = "11 22, 33";
    for encoding in [
        Encoding::Linear16,
        Encoding::Mulaw,
        Encoding::Wav,
        Encoding::OggOpus,
        Encoding::Mp3,
    ] {
        let saying = Saying {
            speaking_rate: 1.0,
            format: AudioFormat::mono(encoding, RATE),
        };
        let mut speech = visit(&[]).say(text, &saying).unwrap();
        let (mut position, mut words) = (Duration::ZERO, Vec::new());
        while let Some(piece) = speech.next().await {
            let piece = piece.unwrap();
            assert!(!piece.audio.is_empty() && piece.start == position);
            position += piece.duration;
            words.extend(piece.words);
        }
        let slot = WORD + GAP;
        let starts: Vec<Duration> = words.iter().map(|word| word.start).collect();
        assert_eq!(starts, [Duration::ZERO, slot, slot * 2], "{encoding}");
        assert_eq!(words[1].word, "22,");
        assert!(position >= slot * 3, "{encoding} {position:?}");
    }
}

#[tokio::test]
async fn faster_speech_is_shorter_and_still_understood() {
    let length = async |speaking_rate| {
        let saying = Saying {
            speaking_rate,
            format: FORMAT,
        };
        let whole = visit(&[])
            .say("1 2 3", &saying)
            .unwrap()
            .whole()
            .await
            .unwrap();
        assert_eq!(heard(&whole.audio), [1, 2, 3]);
        whole.duration
    };
    assert_eq!(length(0.5).await, (WORD + GAP) * 6);
    assert_eq!(length(1.0).await, (WORD + GAP) * 3);
    assert_eq!(length(1.2).await, Duration::from_millis(1_200));
}
