"""The error tree; `adasd.rpc.status` maps each class to one gRPC code and one HTTP status.

AdasdError
 +- InvalidRequest            what the client sent cannot be honoured; names the parameter
 |   +- ContextLengthExceeded prompt and answer do not fit the context window
 |   +- ModelNotFound         the named model is not served here
 |   +- GrammarFault          a text cannot go on as its grammar wants it
 +- InvalidDraft              a candidate block no drafter may send (a fault of the drafter)
 +- NumericalFault            NaN where logits should be; names the side it came from
 +- SessionNotFound           a replica no longer holds the KV of a session
 +- Conflict                  epoch or round moved on: somebody else owns the session
 +- Unauthenticated           no API key, or one that is not known here
 +- Overloaded                a bounded queue is full
 |   +- RateLimited           a client has used up what its key allows
 +- ServiceUnavailable        a service does not answer
 +- DeadlineExceeded          a service did not answer in time
"""


class AdasdError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidRequest(AdasdError):
    """A request that cannot be honoured. `param` is the name of the parameter at fault, if one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit into the context window."""


class ModelNotFound(InvalidRequest):
    """The named model is not served here."""


class GrammarFault(InvalidRequest):
    """A text cannot go on as its grammar wants it: found out while it is written."""


class InvalidDraft(AdasdError):
    """A candidate block that breaks the contract of `Draft`: a fault of the drafter."""


class NumericalFault(AdasdError):
    """Logits that are NaN, or a row without a single finite logit. `side` is `draft` or `target`."""

    def __init__(self, message: str, side: str = "target") -> None:
        super().__init__(message)
        self.side = side


class SessionNotFound(AdasdError):
    """The replica does not hold the context it was told it holds; send the whole context once more."""


class Conflict(AdasdError):
    """The stored epoch or round is not the expected one; the older owner stops."""


class Unauthenticated(AdasdError):
    """The request carries no API key, or one that is not known here."""


class Overloaded(AdasdError):
    """A bounded queue is full; back off."""


class RateLimited(Overloaded):
    """A client has used up what its key allows. `retry_after`: seconds until there is something left again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceUnavailable(AdasdError):
    """A service does not answer."""


class DeadlineExceeded(AdasdError):
    """A service did not answer in time."""
