//! What a request for an egress asks for. What embedded rooms cannot do was refused by the name of its field before
//! (`src/http/twirp/table.rs`); what depends on several fields is refused here.

use livekit_protocol as proto;
use proto::egress_info::Request;
use proto::{room_composite_egress_request, track_egress_request};

use super::EgressError;

/// What is recorded of a room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Everybody, mixed.
    Room,
    /// All sound of this participant, mixed.
    Participant(String),
    /// The track of this sid, as it is.
    Track(String),
}

/// A request for an egress.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The name of the room.
    pub room: String,
    /// What of it.
    pub what: What,
    /// The template of the file's name, and the field that has it.
    pub filepath: (String, &'static str),
    /// The request as answers repeat it.
    pub request: Request,
}

impl Wanted {
    /// All sound of a room.
    pub fn of_room(request: proto::RoomCompositeEgressRequest) -> Result<Self, EgressError> {
        if !request.audio_only {
            let problem = "audio_only: embedded rooms record sound only; set it to true";
            return Err(EgressError::InvalidArgument(problem.to_owned()));
        }
        #[allow(deprecated)] // older SDKs fill it
        let old = match &request.output {
            Some(room_composite_egress_request::Output::File(file)) => Some(file),
            _ => None,
        };
        let (file, field) = match old {
            Some(file) if request.file_outputs.is_empty() => {
                (file.filepath.clone(), "file.filepath")
            }
            Some(_) => return Err(several()),
            None => one_of(&request.file_outputs)?,
        };
        Ok(Self {
            room: request.room_name.clone(),
            what: What::Room,
            filepath: (file, field),
            request: Request::RoomComposite(request),
        })
    }

    /// All sound of a participant.
    pub fn of_participant(request: proto::ParticipantEgressRequest) -> Result<Self, EgressError> {
        if request.identity.is_empty() {
            return Err(missing("identity"));
        }
        Ok(Self {
            room: request.room_name.clone(),
            what: What::Participant(request.identity.clone()),
            filepath: one_of(&request.file_outputs)?,
            request: Request::Participant(request),
        })
    }

    /// A track.
    pub fn of_track(request: proto::TrackEgressRequest) -> Result<Self, EgressError> {
        if request.track_id.is_empty() {
            return Err(missing("track_id"));
        }
        let Some(track_egress_request::Output::File(file)) = &request.output else {
            return Err(missing("file"));
        };
        Ok(Self {
            room: request.room_name.clone(),
            what: What::Track(request.track_id.clone()),
            filepath: (file.filepath.clone(), "file.filepath"),
            request: Request::Track(request),
        })
    }
}

fn one_of(files: &[proto::EncodedFileOutput]) -> Result<(String, &'static str), EgressError> {
    match files {
        [file] => Ok((file.filepath.clone(), "file_outputs.filepath")),
        [] => Err(missing("file_outputs")),
        _ => Err(several()),
    }
}

fn missing(field: &str) -> EgressError {
    EgressError::InvalidArgument(format!("{field}: is missing"))
}

fn several() -> EgressError {
    EgressError::InvalidArgument("file_outputs: an egress writes one file".to_owned())
}

/// What is recorded of a room by itself, as `CreateRoom` asked for it.
#[derive(Debug, Clone, Default)]
pub struct Automatic {
    /// From the beginning.
    pub room: Option<proto::RoomCompositeEgressRequest>,
    /// Each participant who comes.
    pub participant: Option<proto::AutoParticipantEgress>,
    /// Each audio track.
    pub tracks: Option<proto::AutoTrackEgress>,
}

impl Automatic {
    /// Checks a request for the room of this name.
    pub fn new(egress: proto::RoomEgress, room_name: &str) -> Result<Self, EgressError> {
        let room = egress.room.map(|room| proto::RoomCompositeEgressRequest {
            room_name: room_name.to_owned(),
            ..room
        });
        let automatic = Self {
            room,
            participant: egress.participant,
            tracks: egress.tracks,
        };
        let named = |part: &str, error: EgressError| match error {
            EgressError::InvalidArgument(problem) => {
                EgressError::InvalidArgument(format!("egress.{part}.{problem}"))
            }
            error => error,
        };
        if let Some(room) = automatic.room.clone() {
            Wanted::of_room(room).map_err(|error| named("room", error))?;
        }
        if let Some(wanted) = automatic.of_participant(room_name, "somebody") {
            wanted.map_err(|error| named("participant", error))?;
        }
        Ok(automatic)
    }

    /// The egress of a participant who has come.
    pub fn of_participant(
        &self,
        room_name: &str,
        identity: &str,
    ) -> Option<Result<Wanted, EgressError>> {
        let wanted = self.participant.clone()?;
        Some(Wanted::of_participant(proto::ParticipantEgressRequest {
            room_name: room_name.to_owned(),
            identity: identity.to_owned(),
            file_outputs: wanted.file_outputs,
            ..Default::default()
        }))
    }

    /// The egress of a track that was published.
    pub fn of_track(&self, room_name: &str, track_id: &str) -> Option<Result<Wanted, EgressError>> {
        let wanted = self.tracks.clone()?;
        let file = proto::DirectFileOutput {
            filepath: wanted.filepath,
            disable_manifest: wanted.disable_manifest,
            output: None,
        };
        Some(Wanted::of_track(proto::TrackEgressRequest {
            room_name: room_name.to_owned(),
            track_id: track_id.to_owned(),
            output: Some(track_egress_request::Output::File(file)),
            ..Default::default()
        }))
    }
}
