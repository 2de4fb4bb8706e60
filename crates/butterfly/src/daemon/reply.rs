//! Checks of a reply before a command reads it.

use crate::daemon::encryption::code_name;
use crate::failure::Failure;
use butterfly_api::proto::{Message, MessageV0, Messages, Response, error};
use protobuf::EnumOrUnknown;

/// The clear messages of `reply`.
pub fn messages(reply: Messages) -> Result<Vec<Message>, Failure> {
    if let Some(encrypted) = reply.encrypted.into_option() {
        // With a key it was opened before it came here; without one none is read.
        return Err(Failure::said(if let Some(error) = encrypted.error.into_option() {
            let code = error.code.map_or("no code".into(), code_name);
            format!("Encrypted message error: {code}")
        } else if encrypted.aes256cbc_sha512.is_some() {
            "Error, cannot decrypt message".into()
        } else {
            "error: nothing recognized in encrypted response".into()
        }));
    }
    if reply.messages.is_empty() {
        return Err(Failure::said("error: no message in response"));
    }
    Ok(reply.messages)
}

/// The responses in `messages` if all are successful; else every refusal, in order.
pub fn responses(messages: Vec<Message>) -> Result<Vec<Response>, Failure> {
    let mut responses = Vec::with_capacity(messages.len());
    let mut refusals = Vec::new();
    for message in messages {
        match response(message) {
            Ok(response) => responses.push(response),
            Err(Failure::Said(refusal)) => refusals.push(refusal),
            Err(other) => return Err(other),
        }
    }
    match refusals.is_empty() {
        true => Ok(responses),
        false => Err(Failure::said(refusals.join("\n"))),
    }
}

/// The successful response in `message`.
pub fn response(message: Message) -> Result<Response, Failure> {
    let response = payload(message)?
        .response
        .into_option()
        .ok_or_else(|| Failure::said("error: no response in MessageV0"))?;
    if response.status.status() {
        return Ok(response);
    }
    Err(refusal(response.status.error.description(), response.status.error.help()))
}

fn payload(message: Message) -> Result<MessageV0, Failure> {
    if let Some(error) = message.error.into_option() {
        let help = match error.code.and_then(|code| code.enum_value().ok()) {
            Some(error::Code::REJECTED) => {
                "\nhelp: a daemon with a key refuses what is in clear text: name its key with -k PATH"
            }
            _ => "",
        };
        let code = error.code.map_or("no code".into(), envelope_code);
        return Err(Failure::said(format!("error in response: {code}{help}")));
    }
    message
        .message_0
        .into_option()
        .ok_or_else(|| Failure::said("error: no message recognized in response"))
}

/// The daemon's own words: the text the protocol fixes, then its help.
fn refusal(description: &str, help: &str) -> Failure {
    let mut text = match description {
        "" => "error in response\n no details provided".to_owned(),
        _ => format!("error in response\ndescription: {description}"),
    };
    if !help.is_empty() {
        text.push_str("\nhelp: ");
        text.push_str(help);
    }
    Failure::said(text)
}

fn envelope_code(code: EnumOrUnknown<error::Code>) -> String {
    code.enum_value().map_or_else(|number| number.to_string(), |code| format!("{code:?}"))
}
