//! What lapin and the broker say, as this crate's errors: one mapping, with the protocol's words beside each code.

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};

use crate::error::{Error, ErrorKind};

/// An error of an operation on a channel or an open connection.
pub(super) fn classify(operation: &'static str, error: &lapin::Error) -> Error {
    Error::new(kind(error), operation).with_message(text(error))
}

/// An error of connecting. The broker's text can name the user, which no log should show; so the text is cleaned, and
/// the error behind it is not kept.
pub(super) fn connecting(error: &lapin::Error, user: &str) -> Error {
    let kind = match protocol_kind(error) {
        Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)) => ErrorKind::Unauthorized,
        // NOT_ALLOWED: the virtual host does not exist, or this user has no right to it.
        Some(AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)) => ErrorKind::NotFound,
        _ => kind(error),
    };
    let refused = matches!(kind, ErrorKind::Unauthorized | ErrorKind::NotFound);
    let mut text = text(error);
    if !user.is_empty() {
        text = text.replace(user, "[hidden]");
    }
    Error::new(kind, "connect").with_message(text).with_transient(!refused && kind.is_transient())
}

fn protocol_kind(error: &lapin::Error) -> Option<&AMQPErrorKind> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.kind()),
        _ => None,
    }
}

fn kind(error: &lapin::Error) -> ErrorKind {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => of_protocol(error),
        lapin::ErrorKind::IOError(_)
        | lapin::ErrorKind::MissingHeartbeatError
        | lapin::ErrorKind::ParsingError(_)
        | lapin::ErrorKind::InvalidChannel(_)
        | lapin::ErrorKind::InvalidChannelState(..)
        | lapin::ErrorKind::InvalidConnectionState(_) => ErrorKind::Disconnected,
        lapin::ErrorKind::ChannelsLimitReached => ErrorKind::Refused,
        lapin::ErrorKind::AuthProviderError(_) => ErrorKind::Unauthorized,
        lapin::ErrorKind::SerialisationError(_) => ErrorKind::Invalid,
        lapin::ErrorKind::InvalidProtocolVersion(_) => ErrorKind::Unsupported,
        // `RuntimeShutdownError`, `FutureCompleted`, `NoDefaultRuntime`, and what a newer lapin adds.
        _ => ErrorKind::Other,
    }
}

/// The reply codes are those of the AMQP 0-9-1 specification, section 1.2.
fn of_protocol(error: &AMQPError) -> ErrorKind {
    match error.kind() {
        AMQPErrorKind::Soft(error) => match error {
            // 311: the body is larger than the broker takes.
            AMQPSoftError::CONTENTTOOLARGE => ErrorKind::Invalid,
            // 312: nothing is bound to where it was sent.
            AMQPSoftError::NOROUTE => ErrorKind::Unroutable,
            // 313: only for the `immediate` flag, which is never set.
            AMQPSoftError::NOCONSUMERS => ErrorKind::Refused,
            // 403: this user may not do this here.
            AMQPSoftError::ACCESSREFUSED => ErrorKind::Refused,
            // 404: no such queue or exchange.
            AMQPSoftError::NOTFOUND => ErrorKind::NotFound,
            // 405: an exclusive queue of another connection.
            AMQPSoftError::RESOURCELOCKED => ErrorKind::Refused,
            // 406: declared otherwise, an unknown delivery tag, a delivery acked too late.
            AMQPSoftError::PRECONDITIONFAILED => ErrorKind::Refused,
        },
        AMQPErrorKind::Hard(error) => match error {
            // 320: an operator closed it, or the node stops.
            AMQPHardError::CONNECTIONFORCED => ErrorKind::Disconnected,
            // 402: no such virtual host.
            AMQPHardError::INVALIDPATH => ErrorKind::NotFound,
            // 501 to 505: what was sent was not understood; a header table above the frame size is one cause.
            AMQPHardError::FRAMEERROR
            | AMQPHardError::SYNTAXERROR
            | AMQPHardError::COMMANDINVALID
            | AMQPHardError::CHANNELERROR
            | AMQPHardError::UNEXPECTEDFRAME => ErrorKind::Disconnected,
            // 506: the broker is short of something.
            AMQPHardError::RESOURCEERROR => ErrorKind::Refused,
            // 530: a limit, or a right that is missing.
            AMQPHardError::NOTALLOWED => ErrorKind::Refused,
            // 540: this kind of queue cannot do it.
            AMQPHardError::NOTIMPLEMENTED => ErrorKind::Unsupported,
            // 541: something broke in the broker.
            AMQPHardError::INTERNALERROR => ErrorKind::Disconnected,
        },
    }
}

/// Whether this user has no right to it: 403, one of the codes that are `Refused`.
pub(super) fn is_forbidden(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused && error.message().is_some_and(|text| text.starts_with("403 "))
}

/// Whether it belongs to another connection, or to none where one was to have it alone: 405, one of the codes that are
/// `Refused`.
pub(super) fn is_locked(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused && error.message().is_some_and(|text| text.starts_with("405 "))
}

/// What the broker said, without the prefix of each of lapin's layers, and without the user that it names at the end.
pub(super) fn text(error: &lapin::Error) -> String {
    let text = match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => format!("{} {}", error.get_id(), error.get_message()),
        _ => error.to_string(),
    };
    match text.split_once(" refused for user '") {
        Some((before, _)) => format!("{before} refused for this user"),
        None => text,
    }
}
