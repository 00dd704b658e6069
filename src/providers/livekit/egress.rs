//! Recording by a LiveKit deployment: its egress service mixes the sound of a room and puts it into the bucket of our
//! settings. The deployment is given the keys of that bucket with each recording; without keys it uses its own.

use std::time::Duration;

use async_trait::async_trait;
use livekit_api::services::egress::encoding::EncodingOptions;
use livekit_api::services::egress::{
    EgressClient, EgressListFilter, EgressListOptions, EgressOutput, RoomCompositeOptions,
};
use livekit_protocol::encoded_file_output::Output;
use livekit_protocol::{
    AudioCodec, EgressInfo, EgressStatus, EncodedFileOutput, EncodedFileType, S3Upload,
};

use super::{PATIENCE, SLUG, failure, mode};
use vivavoce_config::{HttpUrl, Recording, RecordingBackend, Rtc, RtcMode};
use vivavoce_seams::rooms::egress::{EgressState, RoomEgress};
use vivavoce_seams::rooms::{ApiKey, RoomError};

/// Of the recording, in kbit/s and Hz: all voices of a room in one channel or two.
const BITRATE: i32 = 64;
const FREQUENCY: i32 = 48_000;

/// The egress of a deployment. It holds secrets, and is not shown.
pub struct Egress {
    client: EgressClient,
    upload: S3Upload,
}

impl Egress {
    /// That of the deployment and of the bucket that the settings name; `None` where they do not name both.
    pub fn from_settings(rtc: &Rtc, recording: &Recording) -> Option<Self> {
        if mode(rtc) != RtcMode::Livekit || recording.backend != RecordingBackend::S3 {
            return None;
        }
        let key = ApiKey::from_settings(rtc)?;
        let host = rtc.url.as_ref()?.url().as_str().trim_end_matches('/');
        let client =
            EgressClient::with_api_key(host, &key.key, &key.secret).with_request_timeout(PATIENCE);
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
        Some(Self { client, upload })
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
        let options = RoomCompositeOptions {
            audio_only: true,
            encoding: EncodingOptions {
                audio_codec: AudioCodec::Opus,
                audio_bitrate: BITRATE,
                audio_frequency: FREQUENCY,
                ..EncodingOptions::default()
            },
            ..RoomCompositeOptions::default()
        };
        let outputs = vec![EgressOutput::File(file)];
        let started = self
            .client
            .start_room_composite_egress(room, outputs, options);
        Ok(started.await.map_err(failure)?.egress_id)
    }

    async fn stop(&self, id: &str) -> Result<(), RoomError> {
        let stopped = self.client.stop_egress(id).await;
        stopped.map(drop).map_err(failure)
    }

    async fn look(&self, id: &str) -> Result<EgressState, RoomError> {
        let options = EgressListOptions {
            filter: EgressListFilter::Egress(id.to_owned()),
            ..EgressListOptions::default()
        };
        let known = self.client.list_egress(options).await.map_err(failure)?;
        let known = known.iter().find(|egress| egress.egress_id == id);
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
