//! Deepgram.
