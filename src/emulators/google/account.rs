//! A service account for clients of the emulator, because Google's clients have no other credential. Its key is public and
//! opens nothing; the emulator does not verify its signatures.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// PKCS#8; made once, because making a key takes longer than starting everything else.
const KEY: &str = include_str!("account-key.pem");

/// The JSON of the account, whose tokens are exchanged at this address of the emulators.
pub(crate) fn account(plain: SocketAddr) -> Value {
    json!({
        "type": "service_account",
        "project_id": "emulated",
        "private_key_id": "1",
        "private_key": KEY,
        "client_email": "server@emulated.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": format!("http://{plain}/token"),
    })
}
