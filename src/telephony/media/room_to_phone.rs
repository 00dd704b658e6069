//! Send path, room to phone: the room's tracks pass a jitter buffer each and are mixed every 20 ms, all at the rate of the
//! call, and encoded in its codec, in packets of the negotiated length.

use super::Codec;
use super::codec::Encoder;
use super::dtmf::DtmfSender;
use vivavoce_audio::concealment::Concealment;
use vivavoce_audio::opus::OpusError;

/// The encoder for one codec. See the module.
#[derive(Debug)]
pub struct TxPipeline {
    codec: Codec,
    encoder: Encoder,
    /// Less than a packet, left over between frames.
    sound: Vec<i16>,
    packet_samples: usize,
    /// Continues what was relayed until the room is heard: its sound comes later by a jitter buffer.
    bridge: Option<Concealment>,
}

impl TxPipeline {
    /// `complexity` is that of the Opus encoder.
    pub fn new(codec: Codec, packet_ms: u32, complexity: u8) -> Result<Self, OpusError> {
        Ok(Self {
            codec,
            encoder: Encoder::new(codec, complexity)?,
            sound: Vec::new(),
            packet_samples: (codec.rate().hz() * packet_ms / 1_000) as usize,
            bridge: None,
        })
    }

    /// Takes 20 ms at the rate of the call. In-band DTMF replaces them.
    pub fn take(&mut self, mixed: &[i16], sounding: Option<&mut DtmfSender>) {
        let start = self.sound.len();
        self.sound.extend_from_slice(mixed);
        if let Some(bridge) = &mut self.bridge {
            let is_silent = mixed.iter().all(|sample| *sample == 0);
            if is_silent && bridge.is_audible() {
                let length = self.sound.len() - start;
                self.sound.truncate(start);
                bridge.conceal(length, &mut self.sound);
            } else {
                bridge.heard(self.sound.get_mut(start..).unwrap_or_default());
                self.bridge = None;
            }
        }
        if let Some(sender) = sounding {
            let place = self.sound.get_mut(start..).unwrap_or_default();
            sender.sound(self.codec.rate().hz(), place);
        }
    }

    /// Appends the payload of the next packet and returns its length in timestamp units; `None` if there is not enough
    /// audio.
    pub fn packet(&mut self, payload: &mut Vec<u8>) -> Option<u32> {
        let sound = self.sound.get(..self.packet_samples)?;
        let encoded = self.encoder.encode(sound, payload);
        self.sound.drain(..self.packet_samples);
        let ticks = self.codec.ticks(self.packet_samples);
        if !encoded {
            tracing::debug!("cannot encode an RTP packet");
        }
        Some(ticks)
    }

    /// What was relayed, of which these are the last payloads, is continued until there is sound of the room. Other codecs
    /// than G.711 have a concealment of their own in the phone.
    pub fn resume(&mut self, payloads: &[u8]) {
        self.clear();
        if let Encoder::Law(law) = &self.encoder {
            let mut past = Vec::with_capacity(payloads.len());
            law.expand(payloads, &mut past);
            let mut bridge = Concealment::new(self.codec.rate().hz());
            bridge.heard(&mut past);
            self.bridge = Some(bridge);
        }
    }

    /// Takes a last frame before payloads are relayed, and fades it over into the first of them, where that is G.711.
    pub fn fade_into(&mut self, mixed: &[i16], payload: &mut Vec<u8>) {
        let Encoder::Law(law) = self.encoder else {
            return;
        };
        self.take(mixed, None);
        let mut sound = Vec::with_capacity(payload.len());
        law.expand(payload, &mut sound);
        let length = sound.len().min(self.sound.len());
        for (n, (new, old)) in sound.iter_mut().zip(&self.sound).enumerate() {
            let share = n as f32 / length as f32;
            *new = (f32::from(*new) * share + f32::from(*old) * (1.0 - share)) as i16;
        }
        payload.clear();
        law.compress(&sound, payload);
    }

    /// Drops an unfinished packet: a DTMF event interrupts it.
    pub fn clear(&mut self) {
        self.sound.clear();
    }
}
