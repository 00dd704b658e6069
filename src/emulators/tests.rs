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
use super::tone_words::speak;
use super::visit::Record;
use super::*;
use crate::audio::{AudioFormat, Encoding, SampleRate, linear16};

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
    let _ = rustls::crypto::ring::default_provider().install_default();
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
