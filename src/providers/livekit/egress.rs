//! Recording with a LiveKit deployment: its egress service mixes the audio of a room and uploads it to the bucket of the
//! settings. The deployment is given the bucket's keys with each request; without keys it uses its own.

use std::time::Duration;

use async_trait::async_trait;
use livekit_protocol as proto;
use livekit_protocol::encoded_file_output::Output;
use livekit_protocol::room_composite_egress_request::Options;
use livekit_protocol::{
    AudioCodec, EgressInfo, EgressStatus, EncodedFileOutput, EncodedFileType, S3Upload, VideoCodec,
};
use prost::Message;

use super::server_api::{Grant, ServerApi};
use super::{SLUG, mode};
use vivavoce_config::{HttpUrl, Recording, RecordingBackend, Rtc, RtcMode};
use vivavoce_providers::transport::Transport;
use vivavoce_seams::rooms::egress::{EgressState, RoomEgress};
use vivavoce_seams::rooms::{ApiKey, RoomError};

/// Of the recording, in kbit/s and Hz: all voices of a room in one channel or two.
const BITRATE: i32 = 64;
const FREQUENCY: i32 = 48_000;

/// The egress of a deployment. It holds secrets, and is not shown.
pub struct Egress {
    api: ServerApi,
    upload: S3Upload,
}

impl Egress {
    /// That of the deployment and of the bucket that the settings name; `None` where they do not name both.
    pub fn from_settings(rtc: &Rtc, recording: &Recording, transport: &Transport) -> Option<Self> {
        if mode(rtc) != RtcMode::Livekit || recording.backend != RecordingBackend::S3 {
            return None;
        }
        let key = ApiKey::from_settings(rtc)?;
        let api = ServerApi::new(rtc.url.as_ref()?.url(), key, transport);
        let exposed = |secret: &Option<vivavoce_config::Secret>| {
            let secret = secret.as_ref().map(|secret| secret.expose().to_owned());
            secret.unwrap_or_default()
        };
        let endpoint = recording.s3_endpoint.as_ref();
        let upload = S3Upload {
            access_key: exposed(&recording.s3_access_key),
            secret: exposed(&recording.s3_secret_key),
            region: recording.s3_region.clone().unwrap_or_default(),
            endpoint: endpoint.map_or_else(String::new, |HttpUrl(url)| url.to_string()),
            bucket: recording.s3_bucket.clone()?,
            force_path_style: recording.s3_force_path_style,
            ..S3Upload::default()
        };
        Some(Self { api, upload })
    }
}

impl Egress {
    async fn call<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, RoomError> {
        let method = format!("Egress/{method}");
        let answer = self.api.call(&method, Grant::RoomRecord, request).await;
        answer.map_err(RoomError::from)
    }
}

#[async_trait]
impl RoomEgress for Egress {
    fn slug(&self) -> &'static str {
        SLUG
    }

    async fn start(&self, room: &str, key: &str) -> Result<String, RoomError> {
        let file = EncodedFileOutput {
            file_type: EncodedFileType::Ogg.into(),
            filepath: key.to_owned(),
            // It would be one more object, which nobody removes.
            disable_manifest: true,
            output: Some(Output::S3(self.upload.clone())),
        };
        // What concerns video is not used, and is what LiveKit's SDKs send unless they are told otherwise.
        let encoding = proto::EncodingOptions {
            width: 1920,
            height: 1080,
            depth: 24,
            framerate: 30,
            video_codec: VideoCodec::H264Main.into(),
            video_bitrate: 4500,
            audio_codec: AudioCodec::Opus.into(),
            audio_bitrate: BITRATE,
            audio_frequency: FREQUENCY,
            ..Default::default()
        };
        let request = proto::RoomCompositeEgressRequest {
            room_name: room.to_owned(),
            audio_only: true,
            options: Some(Options::Advanced(encoding)),
            file_outputs: vec![file],
            ..Default::default()
        };
        let started: EgressInfo = self.call("StartRoomCompositeEgress", &request).await?;
        Ok(started.egress_id)
    }

    async fn stop(&self, id: &str) -> Result<(), RoomError> {
        let request = proto::StopEgressRequest {
            egress_id: id.to_owned(),
        };
        self.call("StopEgress", &request).await
    }

    async fn look(&self, id: &str) -> Result<EgressState, RoomError> {
        let request = proto::ListEgressRequest {
            egress_id: id.to_owned(),
            ..Default::default()
        };
        let known: proto::ListEgressResponse = self.call("ListEgress", &request).await?;
        let known = known.items.iter().find(|egress| egress.egress_id == id);
        // LiveKit forgets what ended a day ago.
        let forgotten = || EgressState::Failed("the deployment does not know it any more".into());
        Ok(known.map_or_else(forgotten, state))
    }
}

fn state(egress: &EgressInfo) -> EgressState {
    let complete = match egress.status() {
        EgressStatus::EgressStarting | EgressStatus::EgressActive | EgressStatus::EgressEnding => {
            return EgressState::Goes;
        }
        EgressStatus::EgressFailed | EgressStatus::EgressAborted => {
            let status = egress.status().as_str_name();
            let why = if egress.error.is_empty() {
                status
            } else {
                &egress.error
            };
            return EgressState::Failed(why.to_owned());
        }
        EgressStatus::EgressComplete => true,
        EgressStatus::EgressLimitReached => false,
    };
    let nanoseconds = egress.file_results.first().map_or(0, |file| file.duration);
    EgressState::Stored {
        duration: Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0)),
        complete,
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::FileInfo;

    use super::*;

    fn told(status: EgressStatus, error: &str) -> EgressState {
        state(&EgressInfo {
            status: status.into(),
            error: error.to_owned(),
            file_results: vec![FileInfo {
                duration: 1_500_000_000,
                ..FileInfo::default()
            }],
            ..EgressInfo::default()
        })
    }

    #[test]
    fn what_a_deployment_says_of_a_recording_is_understood() {
        use EgressStatus::{
            EgressAborted, EgressActive, EgressComplete, EgressEnding, EgressFailed,
            EgressLimitReached, EgressStarting,
        };
        for goes in [EgressStarting, EgressActive, EgressEnding] {
            assert_eq!(told(goes, ""), EgressState::Goes);
        }
        for (status, complete) in [(EgressComplete, true), (EgressLimitReached, false)] {
            let duration = Duration::from_millis(1_500);
            let stored = EgressState::Stored { duration, complete };
            assert_eq!(told(status, ""), stored);
        }
        let failed = |why: &str| EgressState::Failed(why.to_owned());
        assert_eq!(told(EgressFailed, "no bucket"), failed("no bucket"));
        assert_eq!(told(EgressAborted, ""), failed("EGRESS_ABORTED"));
    }
}
