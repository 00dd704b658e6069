//! Placeholder.
use std::time::Instant;
use super::opus::{OpusDecoder, OpusError};
use super::{Layout, SampleRate};
use crate::providers::rooms::link::Packet;
pub struct JitterBuffer { decoder: OpusDecoder, waiting: Vec<i16> }
impl JitterBuffer {
    pub fn new() -> Result<Self, OpusError> { Ok(Self { decoder: OpusDecoder::new(Layout::mono(SampleRate::HZ_48000))?, waiting: Vec::new() }) }
    pub fn push(&mut self, packet: &Packet) { let _ = self.decoder.decode(&packet.payload, &mut self.waiting); if self.waiting.len() > 9600 { let more = self.waiting.len() - 9600; self.waiting.drain(..more); } }
    pub fn pull(&mut self, _now: Instant, out: &mut Vec<i16>) { let n = self.waiting.len().min(960); out.extend(self.waiting.drain(..n)); out.resize(960, 0); }
}
