//! Why a request is refused.

use http::StatusCode;

/// Why a request is refused. A closed list: it labels metrics and log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No request line (RFC 9112 section 3).
    #[error("The request line is malformed.")]
    RequestLine,
    /// A line that does not end with CRLF, or CR or LF within one (RFC 9112 section 2.2).
    #[error("A line of the head does not end as HTTP has it.")]
    LineEnd,
    /// A control byte (RFC 9110 section 5.5).
    #[error("The head has a control byte in it.")]
    ControlByte,
    /// A target with bytes that no URI has, or of a form that the method does not go with (RFC 9112 section 3.2).
    #[error("The request target is malformed.")]
    Target,
    /// A path that may be read in two ways.
    #[error("The path may be read in two ways.")]
    Path,
    /// A field that has no name, or one with bytes that names do not have (RFC 9112 section 5.1).
    #[error("A header field is malformed.")]
    Field,
    /// A field that goes on in the next line (RFC 9112 section 5.2).
    #[error("A header field is folded.")]
    Folded,
    /// A field name with `_` or `.`.
    #[error("A header field's name has a character that is not accepted here.")]
    OddName,
    /// No host, or none that can be one (RFC 9112 section 3.2).
    #[error("The request names no valid host.")]
    Host,
    /// Two hosts (RFC 9112 section 3.2).
    #[error("The request names its host twice.")]
    TwoHosts,
    /// A length that is no number, or is there twice (RFC 9110 section 8.6).
    #[error("The length of the body is malformed.")]
    Length,
    /// A length and a transfer coding (RFC 9112 section 6.1).
    #[error("The request has both a length and a transfer coding.")]
    LengthAndCoding,
    /// A malformed list of transfer codings (RFC 9112 section 6.1).
    #[error("The transfer coding is malformed.")]
    Coding,
    /// A transfer coding that is not `chunked`.
    #[error("The transfer coding is not implemented.")]
    UnknownCoding,
    /// A body that breaks the form of chunks (RFC 9112 section 7.1).
    #[error("The body is not chunked as HTTP has it.")]
    Chunk,
    /// CONNECT or TRACE.
    #[error("The method is not allowed.")]
    Method,
    /// A method that nobody knows; methods are in upper case (RFC 9110 section 9.1).
    #[error("The method is not implemented.")]
    UnknownMethod,
    /// A version that is not 1.0 or 1.1.
    #[error("The version of HTTP is not supported.")]
    Version,
    /// A target over the limit.
    #[error("The request target is too long.")]
    TargetTooLong,
    /// A head over the limit.
    #[error("The header is too large.")]
    HeadTooLarge,
    /// Too many fields.
    #[error("The header has too many fields.")]
    TooManyFields,
    /// A head that took too long to arrive.
    #[error("The head of the request did not arrive in time.")]
    HeadTimeout,
    /// An expectation other than `100-continue` (RFC 9110 section 10.1.1).
    #[error("The expectation cannot be met.")]
    Expectation,
    /// A target of another scheme than the connection's (RFC 9110 section 7.4).
    #[error("The request is for another kind of connection.")]
    Misdirected,
    /// A host that the connection's certificate is not for (RFC 9110 section 15.5.20).
    #[error("The request is for a host that this connection is not for.")]
    OtherHost,
    /// A malformed opening of a WebSocket (RFC 6455 section 4.2.1).
    #[error("The opening handshake of the WebSocket is malformed.")]
    WebSocket,
    /// A version of WebSocket other than 13 (RFC 6455 section 4.4).
    #[error("The version of WebSocket is not supported.")]
    WebSocketVersion,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 27] = [
        Self::RequestLine,
        Self::LineEnd,
        Self::ControlByte,
        Self::Target,
        Self::Path,
        Self::Field,
        Self::Folded,
        Self::OddName,
        Self::Host,
        Self::TwoHosts,
        Self::Length,
        Self::LengthAndCoding,
        Self::Coding,
        Self::UnknownCoding,
        Self::Chunk,
        Self::Method,
        Self::UnknownMethod,
        Self::Version,
        Self::TargetTooLong,
        Self::HeadTooLarge,
        Self::TooManyFields,
        Self::HeadTimeout,
        Self::Expectation,
        Self::Misdirected,
        Self::OtherHost,
        Self::WebSocket,
        Self::WebSocketVersion,
    ];

    /// The status to answer with.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::Misdirected | Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::WebSocketVersion => StatusCode::UPGRADE_REQUIRED,
            Self::HeadTooLarge | Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownCoding | Self::UnknownMethod => StatusCode::NOT_IMPLEMENTED,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Its name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestLine => "bad_request_line",
            Self::LineEnd => "bad_line_end",
            Self::ControlByte => "control_byte",
            Self::Target => "bad_target",
            Self::Path => "bad_path",
            Self::Field => "bad_field",
            Self::Folded => "folded_field",
            Self::OddName => "odd_field_name",
            Self::Host => "bad_host",
            Self::TwoHosts => "two_hosts",
            Self::Length => "bad_length",
            Self::LengthAndCoding => "length_and_coding",
            Self::Coding => "bad_coding",
            Self::UnknownCoding => "unknown_coding",
            Self::Chunk => "bad_chunk",
            Self::Method => "method_refused",
            Self::UnknownMethod => "unknown_method",
            Self::Version => "unknown_version",
            Self::TargetTooLong => "target_too_long",
            Self::HeadTooLarge => "head_too_large",
            Self::TooManyFields => "too_many_fields",
            Self::HeadTimeout => "head_timeout",
            Self::Expectation => "unknown_expectation",
            Self::Misdirected => "misdirected",
            Self::OtherHost => "other_host",
            Self::WebSocket => "bad_websocket",
            Self::WebSocketVersion => "websocket_version",
        }
    }
}
