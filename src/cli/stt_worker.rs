//! `vivavoce stt-worker`: the inside of a recogniser process. A server starts it by itself; see
//! `providers::local::pocketsphinx`.
