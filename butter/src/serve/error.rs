//! Errors as OpenAI's object: `{"error": {"message", "type", "param", "code"}}`.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value as Json, json};

use crate::sampler::ParameterError;
use crate::scheduler::{Failure, Refused};

/// Why a request is not answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What is wrong and what to do, in one line.
    pub message: String,
    /// The field at fault, as a path into the body.
    pub param: Option<String>,
    /// What programs tell errors apart by.
    pub code: Option<&'static str>,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u64>,
}

impl ApiError {
    /// An error of a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into().replace(['\n', '\r'], " "),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// A field that is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = param.into();
        let message = format!("`{param}`: {}", message.into());
        ApiError {
            param: Some(param),
            code: Some("invalid_value"),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// A field that is known and has no meaning here.
    pub fn unsupported(param: impl Into<String>, reason: &str) -> ApiError {
        ApiError {
            code: Some("unsupported_parameter"),
            ..ApiError::field(param, reason)
        }
    }

    /// With a code.
    pub fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// With a hint when to come again.
    pub fn retry_after(mut self, seconds: u64) -> ApiError {
        self.retry_after = Some(seconds);
        self
    }

    /// The object, as it also stands in a stream that ends early.
    pub fn object(&self) -> Json {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.status, &self.object());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<ParameterError> for ApiError {
    fn from(error: ParameterError) -> ApiError {
        let problem = format!("is {}, it must be {}", error.value, error.allowed);
        ApiError::field(error.field, problem)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, refused.to_string());
        match refused {
            Refused::Full { .. } => error.code("overloaded").retry_after(1),
            Refused::NotReady => error.code("not_ready").retry_after(2),
            Refused::Ended => error.code("shutting_down").retry_after(5),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        let message = failure.to_string();
        match failure {
            Failure::Row(_) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("no_token")
            }
            // The caller's grammar, not the server, is at fault.
            Failure::Grammar(_) => {
                ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_grammar")
            }
            Failure::Device(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .code("device_failed")
                .retry_after(2),
            Failure::Deadline(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("deadline")
            }
            Failure::Shutdown => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .code("shutting_down")
                .retry_after(5),
            Failure::TooLong { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, message).code("context_length_exceeded")
            }
        }
    }
}

/// A response with a JSON body.
pub fn json_response(status: StatusCode, json: &Json) -> Response<Body> {
    let mut response = Response::new(Body::from(json.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
