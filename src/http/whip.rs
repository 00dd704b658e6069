//! `/whip` and `/whep`: WebRTC over HTTP for clients without LiveKit's protocol. A request carries an offer and gets an answer:
//! by WHIP (RFC 9725) a browser or OBS publishes into a room, by WHEP (draft-ietf-wish-whep) a player hears one. Both come with
//! a participant's access token and are participants like others; what they do not signal, a task here does for them.
//!
//! An offer is made once: neither trickled candidates nor ICE restarts are taken (405), because an ICE-lite server needs no
//! candidates of its clients, and whoever loses the connection begins anew.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_request::Message as Ask;
use proto::signal_response::Message as Told;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::signal::{self, authorization, open_rooms, plain, refused};
use super::state::AppState;
use super::{auth, body, limits};
use vivavoce_actors::mixes::Listener;
use vivavoce_rooms::offers::Offer;
use vivavoce_rooms::sdp::{self, SectionKind};
use vivavoce_rooms::{Admission, Connection, Hears, Now, Refusal, admit_once, identify};

/// The largest offer: those of browsers and OBS have a tenth of it.
pub const MAX_OFFER_BYTES: usize = 64 << 10;
/// The media type of offers and answers.
const SDP: &str = "application/sdp";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the rooms are told that somebody is there.
const PING: Duration = Duration::from_secs(5);

/// The sessions by WHIP and WHEP, which limits of participants bound.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<HashMap<String, Session>>>);

struct Session {
    room: String,
    identity: String,
    ended: CancellationToken,
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `POST /whip`: publishes what the offer sends.
pub async fn publish(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let begun = begin("/whip", Hears::Nothing, &state, &request, payload).await;
    begun.unwrap_or_else(|refusal| refused(&refusal))
}

/// `POST /whep`: the offer receives a participant's tracks, or the mix of all.
pub async fn play(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let query = form_urlencoded::parse(request.query_string().as_bytes());
    let mut participant = query.filter(|(key, _)| key == "participant");
    let hears = match participant.next() {
        Some((_, identity)) => Hears::Participant(identity.into_owned()),
        None => Hears::Mix,
    };
    let begun = begin("/whep", hears, &state, &request, payload).await;
    begun.unwrap_or_else(|refusal| refused(&refusal))
}

/// `DELETE /whip/{id}` and `DELETE /whep/{id}`: the same participant leaves.
pub async fn end(
    state: web::Data<AppState>,
    request: HttpRequest,
    id: web::Path<String>,
) -> HttpResponse {
    let ended = || {
        let rooms = state.embedded_rooms.as_ref();
        let rooms = rooms.ok_or_else(|| Refusal::new(404, "this server has no embedded rooms"))?;
        let (query, bearer) = (request.query_string(), authorization(&request));
        let who = identify(query, bearer, rooms.keys(), Now::read().unix_s())?;
        let all = state.whip.all();
        let session = all.get(id.as_str());
        let session =
            session.filter(|session| (&session.room, &session.identity) == (&who.0, &who.1));
        let session = session.ok_or_else(|| Refusal::new(404, "there is no such session"))?;
        session.ended.cancel();
        Ok(plain(StatusCode::OK, ""))
    };
    ended().unwrap_or_else(|refusal: Refusal| refused(&refusal))
}

/// `PATCH`: see the module.
pub async fn patch() -> HttpResponse {
    let mut answer = plain(
        StatusCode::METHOD_NOT_ALLOWED,
        "candidates are not needed, and an ICE restart is a new session",
    );
    let allowed = header::HeaderValue::from_static("DELETE, OPTIONS");
    answer.headers_mut().insert(header::ALLOW, allowed);
    answer
}

async fn begin(
    path: &'static str,
    hears: Hears,
    state: &web::Data<AppState>,
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let rooms = open_rooms(state)?;
    let (keys, now_s) = (rooms.keys(), Now::read().unix_s());
    let bearer = authorization(request);
    let admission = admit_once(request.query_string(), bearer, keys, now_s, hears)?;
    let stranger = auth::stranger(request).filter(|_| state.auth.is_none());
    let admission = Admission {
        party: admission.claims.principal().party(stranger),
        ..admission
    };
    if !is_sdp(request) {
        return Err(Refusal::new(415, format!("the body must be {SDP}")));
    }
    if signal::where_it_is(state, &admission.room).is_some() {
        let problem = "the room is still at the server that this one replaces; try again";
        return Err(Refusal::new(503, problem));
    }
    rooms.check(&admission).await?;
    let party = admission.claims.principal().party(None);
    limits::authenticated(request, party.tenant()).map_err(Refusal::of_quota)?;
    let offer = body::read(request, &mut payload.into_inner()).await;
    let offer = offer.map_err(|error| match error {
        body::BodyError::TooLarge { .. } => Refusal::new(413, error.to_string()),
        body::BodyError::NoMemory(_) => Refusal::new(503, error.to_string()),
        error => Refusal::new(400, error.to_string()),
    })?;
    let offer = String::from_utf8(offer.to_vec())
        .map_err(|_| Refusal::new(400, "the offer is not UTF-8"))?;
    let admission = with_offer(admission, offer)?;
    let place = (admission.room.clone(), admission.identity().to_owned());
    let hears_mix = admission.once == Some(Hears::Mix);
    let connection = rooms.connect(admission).await;
    let connection = connection.ok_or_else(|| Refusal::new(503, "the rooms have closed"))?;
    let (connection, answer) = answered(connection).await?;
    let mixes = state.mixes.as_ref().filter(|_| hears_mix);
    let mix = mixes.map(|mixes| mixes.listen(&place.0));
    let id = uuid::Uuid::new_v4().simple().to_string();
    let ended = CancellationToken::new();
    let session = Session {
        room: place.0,
        identity: place.1,
        ended: ended.clone(),
    };
    state.whip.all().insert(id.clone(), session);
    let (sessions, key) = (state.whip.clone(), id.clone());
    actix_web::rt::spawn(async move {
        stay(connection, mix, ended).await;
        sessions.all().remove(&key);
    });
    let mut response = HttpResponse::Created();
    response
        .insert_header((header::CONTENT_TYPE, SDP))
        .insert_header((header::LOCATION, format!("{path}/{id}")))
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"))
        .insert_header((header::ACCESS_CONTROL_EXPOSE_HEADERS, "link, location"));
    for link in answer.ice_servers.iter().flat_map(links) {
        response.append_header((header::LINK, link));
    }
    Ok(response.body(answer.sdp))
}

fn is_sdp(request: &HttpRequest) -> bool {
    let written = request.headers().get(header::CONTENT_TYPE);
    let written = written.and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = written.split(';').next().unwrap_or("").trim();
    media_type.eq_ignore_ascii_case(SDP)
}

/// The admission with the offer, and the tracks that it sends announced.
fn with_offer(admission: Admission, sdp: String) -> Result<Admission, Refusal> {
    let refused = |problem: String| Refusal::new(400, problem);
    let offer = proto::SessionDescription {
        r#type: "offer".to_owned(),
        sdp,
        ..Default::default()
    };
    // Read again when it is carried out: this one tells what is wrong with it.
    let read = Offer::read(&offer).map_err(|error| refused(error.to_string()))?;
    let sections = sdp::sections(&read.reduced.text).map_err(|error| refused(error.to_string()))?;
    let publishes = admission.once == Some(Hears::Nothing);
    let mut tracks = Vec::new();
    let mut receives = false;
    for section in &sections {
        let kind = match section.kind {
            SectionKind::Audio => proto::TrackType::Audio,
            SectionKind::Video => proto::TrackType::Video,
            SectionKind::Application => continue,
        };
        receives |= section.direction.receives();
        if !publishes || !section.direction.sends() {
            continue;
        }
        let (source, name) = match kind {
            proto::TrackType::Audio => (proto::TrackSource::Microphone, "audio"),
            _ => (proto::TrackSource::Camera, "video"),
        };
        let permission = admission.claims.permission();
        let sources = &permission.can_publish_sources;
        if !sources.is_empty() && !sources.contains(&(source as i32)) {
            let problem = format!("the access token does not allow {name} to be published");
            return Err(Refusal::new(403, problem));
        }
        tracks.push(proto::AddTrackRequest {
            cid: section.track_id.unwrap_or(section.mid).to_owned(),
            name: name.to_owned(),
            r#type: kind.into(),
            source: source.into(),
            ..Default::default()
        });
    }
    if publishes && tracks.is_empty() {
        return Err(refused("the offer sends nothing".to_owned()));
    }
    if !publishes && !receives {
        return Err(refused("the offer receives nothing".to_owned()));
    }
    Ok(Admission {
        tracks,
        offer: Some(offer),
        ..admission
    })
}

/// What the rooms have answered.
struct Answered {
    sdp: String,
    ice_servers: Vec<proto::IceServer>,
}

async fn answered(mut connection: Connection) -> Result<(Connection, Answered), Refusal> {
    let mut ice_servers = Vec::new();
    let answer = async {
        while let Some(bytes) = connection.responses.next().await {
            let response = proto::SignalResponse::decode(bytes).ok();
            match response.and_then(|response| response.message) {
                Some(Told::Join(join)) => ice_servers = join.ice_servers,
                Some(Told::Answer(answer)) => return Ok(answer.sdp),
                Some(Told::Leave(_)) => {
                    return Err(Refusal::new(400, "the offer cannot be answered"));
                }
                _ => {}
            }
        }
        Err(Refusal::new(503, "the rooms have closed"))
    };
    let late = || Refusal::new(503, "the rooms did not answer in time");
    let sdp = timeout(PATIENCE, answer).await.map_err(|_| late())??;
    Ok((connection, Answered { sdp, ice_servers }))
}

/// Does what a client would signal, until it is removed or its session ends.
async fn stay(connection: Connection, mix: Option<Listener>, ended: CancellationToken) {
    let Connection {
        requests,
        mut responses,
    } = connection;
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ask = |message| {
        let request = proto::SignalRequest {
            message: Some(message),
        };
        requests.send(request.encode_to_vec().into())
    };
    loop {
        tokio::select! {
            () = ended.cancelled() => {
                ask(Ask::Leave(proto::LeaveRequest::default())).await;
                break;
            }
            response = responses.next() => {
                let Some(bytes) = response else { break };
                let response = proto::SignalResponse::decode(bytes).ok();
                let Some(Told::Leave(leave)) = response.and_then(|told| told.message) else {
                    continue;
                };
                if leave.action() == proto::leave_request::Action::Disconnect {
                    break;
                }
                // It cannot resume: its connection recovers by itself, or it is removed.
            }
            _ = pings.tick() => {
                if !ask(Ask::Ping(0)).await {
                    break;
                }
            }
        }
    }
    drop(mix);
}

/// The `Link` headers of a TURN server (RFC 9725 section 4.6).
fn links(server: &proto::IceServer) -> Vec<String> {
    let plain = |text: &str| {
        let fine = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '<' | '>');
        text.chars().all(fine)
    };
    let urls = server.urls.iter().filter(|url| plain(url));
    let links = urls.map(|url| {
        let mut link = format!("<{url}>; rel=\"ice-server\"");
        if plain(&server.username) && plain(&server.credential) && !server.username.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(
                link,
                "; username=\"{}\"; credential=\"{}\"; credential-type=\"password\"",
                server.username, server.credential
            );
        }
        link
    });
    links.collect()
}
