"""Lines to tokens that know their column."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from peakfold.errors import PeakfoldError

WORD = r"[^\W\d][\w.]*"
STRING = r'"(?:[^"\\]|\\.)*"'
_NUMBER = r"(?:-inf\b|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_REFERENCE = rf"%(?:{STRING}|{WORD}|\d+)(?::\d+)?"
_TOKEN = re.compile(
    rf"(?P<reference>{_REFERENCE})|(?P<string>{STRING})|(?P<number>{_NUMBER})|(?P<word>{WORD})"
    r"|(?P<mark><-|[=()\[\]{}:;,@<>])|(?P<comment>#.*)|(?P<space>\s+)"
)
_PLACE = re.compile(rf'(?P<string>{STRING})|(?P<word>[^\s#"]+)|(?P<comment>#.*)|(?P<space>\s+)')


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a line.

    Attributes:
        kind: ``reference``, ``string``, ``number``, ``word``, ``mark`` or ``end``.
        text: as written.
        column: of its first character, from 1.
    """

    kind: str
    text: str
    column: int


class Line:
    """One line of a file, read token by token, with errors that say where.

    Args:
        number: of the line, from 1.
        text: the line.
        error: an error that lacks only its place; its class is what `fail` raises.
        places: read all of the line as words and strings (names and places), not as an expression.
    """

    def __init__(self, number: int, text: str, error: PeakfoldError, places: bool = False) -> None:
        self.number = number
        self.text = text
        self._error = error
        self._tokens = list(self._scan(places))
        self._at = 0

    def _scan(self, places: bool) -> Iterator[Token]:
        at = 0
        pattern = _PLACE if places else _TOKEN
        while at < len(self.text):
            found = pattern.match(self.text, at)
            if found is None:
                raise self.fail("a character that does not belong here", self.text[at], column=at + 1)
            kind = found.lastgroup or ""
            if kind not in {"space", "comment"}:
                yield Token(kind, found.group(), at + 1)
            if found.group() == "@":
                pattern = _PLACE
            at = found.end()
        yield Token("end", "", len(self.text) + 1)

    @property
    def next(self) -> Token:
        """The token that is read next."""
        return self._tokens[self._at]

    @property
    def indent(self) -> int:
        """Columns before the first token."""
        return self._tokens[0].column - 1

    @property
    def is_empty(self) -> bool:
        """Whether the line has no tokens: blank, or a comment."""
        return self._tokens[0].kind == "end"

    def take(self) -> Token:
        """Read a token."""
        token = self.next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Read a mark or word if it is this one."""
        if self.next.text != text or self.next.kind not in {"mark", "word"}:
            return False
        self._at += 1
        return True

    def expect(self, *texts: str) -> None:
        """Read these marks or words."""
        for text in texts:
            if not self.accept(text):
                raise self.fail(f"{text!r} is missing", self.next.text or "the end of the line", repr(text))

    def expect_kind(self, kind: str, what: str) -> Token:
        """Read a token of a kind."""
        if self.next.kind != kind:
            raise self.fail(f"{what} is missing", self.next.text or "the end of the line", what)
        return self.take()

    def expect_end(self) -> None:
        """Fail unless everything is read."""
        if self.next.kind != "end":
            raise self.fail("there is more on the line than belongs there", self.next.text, "nothing more")

    def integer(self, what: str = "a whole number") -> int:
        """Read a whole number."""
        token = self.expect_kind("number", what)
        if not re.fullmatch(r"-?\d+", token.text):
            raise self.fail(f"{what} is missing", token.text, what, column=token.column)
        return int(token.text)

    def word_or_string(self, what: str) -> str:
        """Read a word as it stands, or a quoted string."""
        if self.next.kind not in {"word", "string"}:
            raise self.fail(f"{what} is missing", self.next.text or "the end of the line", what)
        return unquoted(self.take().text)

    def fail(
        self, what: str, got: str = "", expected: str = "", hint: str = "", column: int | None = None
    ) -> PeakfoldError:
        """Return the error of this line, at a column or where reading stands."""
        at = self.next.column if column is None else column
        error = self._error
        return type(error)(error.stage, what, self.place(at), expected, got, hint or error.hint)

    def place(self, column: int) -> str:
        """Return where a column of the line is, for an error."""
        return f"line {self.number}, column {column}: {self.text.strip()}"


def plain_or_quoted(text: str, pattern: str = WORD) -> str:
    """Return a text as it is where it matches a pattern, else quoted.

    Example:
        >>> plain_or_quoted("encoder.layer"), plain_or_quoted("two words")
        ('encoder.layer', '"two words"')
    """
    return text if re.fullmatch(pattern, text) else json.dumps(text)


def unquoted(text: str) -> str:
    """Return what a plain or quoted text stands for."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        return text[1:-1]


def lines_of(text: str, error: PeakfoldError, places: bool = False) -> Iterator[Line]:
    """Yield the lines of a file that say something."""
    for number, line in enumerate(text.split("\n"), 1):
        found = Line(number, line.rstrip("\r"), error, places)
        if not found.is_empty:
            yield found


def inverse(table: Mapping[str, str]) -> dict[str, str]:
    """Return a table read from right to left."""
    return {value: key for key, value in table.items()}
