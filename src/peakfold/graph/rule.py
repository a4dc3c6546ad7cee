"""Rules of substitution as data: one line each, which prints, parses back and reverses.

A rule says: wherever the left terms are computed on inputs that meet the condition, the right terms
compute the same. The text of a rule is::

    NAME: TERM ; TERM => TERM ; TERM when PREDICATE(x, y), PREDICATE(x) proof LEVEL from NAME, NAME

with ``;`` between several outputs, ``OPERATOR[attribute=value](arguments):OUTPUT`` as a term, a word as a
variable, and ``#`` before a comment. Condition and proof may be left out; ``from`` stands after ``proof
axioms`` and names the rules that derive this one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from peakfold.errors import UsageError
from peakfold.ir.text.lexer import Line, lines_of

UNLABELLED, FIELD, INDEX, AXIOMS, UNDECIDED = 0, 1, 2, 3, 9
"""Certificate levels: none yet; tested in exact arithmetic; proved by index normal form; proved from
axioms that model shapes; neither proved nor refuted, not to be used unless asked for."""

LEVELS: Final[Mapping[str, int]] = {
    "field": FIELD,
    "index": INDEX,
    "axioms": AXIOMS,
    "undecided": UNDECIDED,
}
VERSION = "peakfold rules 1"
DEPTH: Final = 50
"""Operators inside one another at most."""

_ERROR = UsageError(stage="rules", what="", hint="docs/rules.md has the format")


@dataclass(frozen=True, slots=True, order=True)
class Var:
    """A variable: any tensor."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to terms.

    Attributes:
        op: short name of the operator, e.g. ``"matmul"``.
        args: its operands.
        attrs: name and value, sorted by name; a word as value is a symbolic constant.
        output: which of its outputs.

    Example:
        >>> str(Apply("concat", (Var("a"), Var("b")), (("axis", 1),)))
        'concat[axis=1](a, b)'
    """

    op: str
    args: tuple["Term", ...]
    attrs: tuple[tuple[str, int | str], ...] = ()
    output: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.attrs, self.output)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        attrs = ", ".join(f"{name}={value}" for name, value in self.attrs)
        args = ", ".join(map(str, self.args))
        output = f":{self.output}" if self.output or self.op == "split" else ""
        return self.op + (f"[{attrs}]" if attrs else "") + f"({args})" + output

    def attr(self, name: str, default: int = 0) -> int:
        """Return a whole-number attribute, or the default where it is not given."""
        value = dict(self.attrs).get(name, default)
        assert isinstance(value, int), f"{name}={value}"
        return value


Term = Var | Apply


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A named predicate on the shapes of variables, or on symbolic constants.

    Attributes:
        name: ``same_shape(a, b)``; ``same_dim(a, i, b, j)``: axis i of a is as long as axis j of b;
            ``one(a, i)``: axis i of a has size 1; ``rank(a, r)``; ``ungrouped(x, w)``: a convolution of x by
            w has one group; ``unstretched()``: elementwise operators stretch no operand; ``positive(s)`` and
            ``nonzero(a)``, of all elements.
        args: names of variables and constants, and numbers.

    Example:
        >>> str(Condition("same_dim", ("a", 0, "b", 1)))
        'same_dim(a, 0, b, 1)'
    """

    name: str
    args: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Rule:
    """An equivalence, and what is known about it.

    Attributes:
        name: unique in its file.
        lhs: one term an output.
        rhs: as many terms.
        conditions: all must hold.
        level: the best certificate: FIELD, INDEX, AXIOMS; UNLABELLED or UNDECIDED without.
        sources: names of the rules that derive it, where the level is AXIOMS.

    Example:
        >>> rule = parse_rule("factor: add(matmul(a, c), matmul(b, c)) => matmul(add(a, b), c) "
        ...                   "when same_shape(a, b) proof index")
        >>> print(rule.reversed())
        factor_reversed: matmul(add(a, b), c) => add(matmul(a, c), matmul(b, c))
        when same_shape(a, b) proof index
    """

    name: str
    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    conditions: tuple[Condition, ...] = ()
    level: int = UNLABELLED
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        sides = f"{_terms(self.lhs)} => {_terms(self.rhs)}"
        when = f" when {', '.join(map(str, self.conditions))}" if self.conditions else ""
        proof = {level: f" proof {word}" for word, level in LEVELS.items()}.get(self.level, "")
        sources = f" from {', '.join(self.sources)}" if self.sources else ""
        return f"{self.name}: {sides}{when}{proof}{sources}"

    def reversed(self) -> "Rule":
        """Return the rule from right to left."""
        name = self.name.removesuffix("_reversed")
        name = name if name != self.name else f"{name}_reversed"
        return replace(self, name=name, lhs=self.rhs, rhs=self.lhs)

    @property
    def reversible(self) -> bool:
        """Whether both sides read the same variables, so that either can be matched."""
        return set(variables(self.lhs)) == set(variables(self.rhs))


def _terms(terms: tuple[Term, ...]) -> str:
    return " ; ".join(map(str, terms))


def subterms(terms: tuple[Term, ...]) -> Iterator[Term]:
    """Yield every subterm, parents first, left to right, repeats included."""
    stack = list(reversed(terms))
    while stack:
        term = stack.pop()
        yield term
        if isinstance(term, Apply):
            stack.extend(reversed(term.args))


def variables(terms: tuple[Term, ...]) -> tuple[str, ...]:
    """Return the names of the variables, in the order in which they first appear."""
    return tuple(dict.fromkeys(term.name for term in subterms(terms) if isinstance(term, Var)))


def constants(terms: tuple[Term, ...]) -> tuple[str, ...]:
    """Return the names of the symbolic constants, in the order in which they first appear."""
    found = (term.attrs for term in subterms(terms) if isinstance(term, Apply))
    return tuple(dict.fromkeys(value for attrs in found for _, value in attrs if isinstance(value, str)))


def size(terms: tuple[Term, ...]) -> int:
    """Return how many different operator applications the terms share or own.

    Example:
        >>> size(parse_rule("r: add(exp(a), exp(a)) => a").lhs)
        2
    """
    found = {replace(term, output=0) for term in subterms(terms) if isinstance(term, Apply)}
    return len(found)


def parse_rule(text: str) -> Rule:
    """Read one rule.

    Raises:
        UsageError: it cannot be read; says line and column.
    """
    return _rule(Line(1, text, _ERROR))


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Read a rule file: a line with the version, then one rule a line.

    Raises:
        UsageError: it cannot be read; says line and column.
    """
    lines = list(lines_of(text, _ERROR))
    first = Line(1, "", _ERROR) if not lines else lines[0]
    if first.text.split("#")[0].strip() != VERSION:
        raise first.fail("this is no rule file", first.text.strip() or "an empty file", VERSION, column=1)
    rules: dict[str, Rule] = {}
    for line in lines[1:]:
        rule = _rule(line)
        if rule.name in rules:
            raise line.fail("two rules have one name", rule.name, "a name of its own", column=1)
        rules[rule.name] = rule
    return tuple(rules.values())


def print_rules(rules: tuple[Rule, ...], comment: str = "") -> str:
    """Return the text of a rule file.

    Args:
        rules: what to print, in this order.
        comment: lines that stand after the version.
    """
    comments = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([VERSION, *comments, *map(str, rules)]) + "\n"


def _rule(line: Line) -> Rule:
    name = line.expect_kind("word", "the name of a rule").text
    line.expect(":")
    lhs = _side(line)
    line.expect("=", ">")
    rhs = _side(line)
    if len(lhs) != len(rhs):
        raise line.fail("the sides differ in their number of outputs", str(len(rhs)), str(len(lhs)))
    conditions = _conditions(line) if line.accept("when") else ()
    level = _level(line) if line.accept("proof") else UNLABELLED
    sources = _sources(line) if level == AXIOMS and line.accept("from") else ()
    line.expect_end()
    return Rule(name, lhs, rhs, conditions, level, sources)


def _sources(line: Line) -> tuple[str, ...]:
    found = [line.expect_kind("word", "the name of a rule").text]
    while line.accept(","):
        found.append(line.expect_kind("word", "the name of a rule").text)
    return tuple(found)


def _side(line: Line) -> tuple[Term, ...]:
    terms = [_term(line)]
    while line.accept(";"):
        terms.append(_term(line))
    return tuple(terms)


def _term(line: Line, depth: int = 0) -> Term:
    if depth > DEPTH:
        raise line.fail(
            "a term is too deep", "one more level", f"at most {DEPTH} operators inside one another"
        )
    name = line.expect_kind("word", "a variable or an operator").text
    attrs = _attrs(line) if line.next.text == "[" else ()
    if not line.accept("("):
        if attrs:
            raise line.fail("operands are missing", line.next.text or "the end of the line", "'('")
        return Var(name)
    args = [_term(line, depth + 1)]
    while line.accept(","):
        args.append(_term(line, depth + 1))
    line.expect(")")
    output = line.integer("the number of an output") if line.accept(":") else 0
    return Apply(name, tuple(args), attrs, output)


def _attrs(line: Line) -> tuple[tuple[str, int | str], ...]:
    line.expect("[")
    found: dict[str, int | str] = {}
    while True:
        token = line.expect_kind("word", "the name of an attribute")
        if token.text in found:
            raise line.fail("an attribute is given twice", token.text, column=token.column)
        line.expect("=")
        found[token.text] = line.take().text if line.next.kind == "word" else line.integer()
        if not line.accept(","):
            break
    line.expect("]")
    return tuple(sorted(found.items()))


def _conditions(line: Line) -> tuple[Condition, ...]:
    found = [_condition(line)]
    while line.accept(","):
        found.append(_condition(line))
    return tuple(found)


def _condition(line: Line) -> Condition:
    name = line.expect_kind("word", "the name of a predicate").text
    line.expect("(")
    if line.accept(")"):
        return Condition(name, ())
    args = [_argument(line)]
    while line.accept(","):
        args.append(_argument(line))
    line.expect(")")
    return Condition(name, tuple(args))


def _argument(line: Line) -> str | int:
    return line.take().text if line.next.kind == "word" else line.integer("a variable or a number")


def _level(line: Line) -> int:
    token = line.expect_kind("word", "the kind of a proof")
    if token.text not in LEVELS:
        raise line.fail("there is no such kind of proof", token.text, ", ".join(LEVELS), column=token.column)
    return LEVELS[token.text]
