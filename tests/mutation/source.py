"""Finds places to mutate in a C file, and writes a version of the file that contains many mutants.

The rewritten file behaves like the original until an environment variable names one of its mutants. So
one build serves hundreds of mutants, and a run of a test can also report which mutants it reaches.

A mutant is a number of edits with the same id. An edit replaces a range of the text by a template; the
template names sub-ranges, which may contain edits of other mutants.
"""
import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\#(?:\\\n|[^\n])*|[A-Za-z_]\w*"""
    r"""|0[xX][0-9a-fA-F]+[uUlL]*|\d[\w.]*|->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\.\.|.""",
    re.S,
)
OPEN, CLOSE = "([{", ")]}"

# Tokens that end an operand, by the operator that it belongs to (lower or equal precedence).
ENDS_LOGICAL_OR = {"?", ":", ",", ";", "=", "return", "+=", "-=", "|=", "&=", "{", "}"}
ENDS_LOGICAL_AND = ENDS_LOGICAL_OR | {"||"}
ENDS_BITS = ENDS_LOGICAL_AND | {"&&", "|", "^"}
ENDS_RELATION = ENDS_BITS | {"==", "!=", "<", ">", "<=", ">="}
ENDS_SUM = ENDS_RELATION | {"<<", ">>"}

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
VALUE_ENDS = re.compile(r"[\w\)\]]$")


@dataclass
class Token:
    text: str
    start: int
    end: int
    match: int = -1  # of a bracket: the index of its partner


@dataclass
class Edit:
    start: int
    end: int
    template: str  # {0}, {1} … are the parts; {m} is the test for this mutant
    parts: list  # (start, end) of the sub-ranges


@dataclass
class Mutant:
    file: str
    line: int
    kind: str
    was: str
    now: str
    edits: list
    needs: str = ""  # the sanitizer that notices it, if only one does
    id: int = -1


@dataclass
class Function:
    name: str
    returns: str  # void, bool, status, pointer, other
    first: int  # token index of its {
    last: int
    statements: list = field(default_factory=list)  # (first token, last token: the ;)


def tokenize(text):
    tokens, stack = [], []
    for m in TOKEN.finditer(text):
        word = m.group()
        if word.isspace() or word.startswith(("//", "/*", "#")):
            continue
        token = Token(word, m.start(), m.end())
        if word in OPEN:
            stack.append(len(tokens))
        elif word in CLOSE and stack:
            token.match = stack.pop()
            tokens[token.match].match = len(tokens)
        tokens.append(token)
    return tokens


def find_functions(text, tokens):
    functions, i = [], 0
    while i < len(tokens):
        if tokens[i].text == "{":
            at_margin = text[tokens[i].start - 1] == "\n"
            if at_margin and i > 0 and tokens[i - 1].text == ")":
                name = tokens[i - 1].match - 1
                begin = name
                while begin > 0 and tokens[begin - 1].text not in (";", "}"):
                    begin -= 1
                words = [t.text for t in tokens[begin:name]]
                if words and words[-1] == "*":
                    returns = "pointer"
                elif words:
                    returns = {"void": "void", "bool": "bool", "tether_status": "status"}.get(words[-1], "other")
                else:
                    returns = "other"
                functions.append(Function(tokens[name].text, returns, i, tokens[i].match))
            i = tokens[i].match
        i += 1
    return functions


def find_statements(tokens, function):
    """Simple statements of a function: token runs that end in a semicolon, without their headers."""
    i = function.first + 1
    while i < function.last:
        word = tokens[i].text
        if word in ("if", "while", "for", "switch") and tokens[i + 1].text == "(":
            i = tokens[i + 1].match + 1
        elif word in ("else", "do", "{", "}", ";"):
            i += 1
        elif word in ("case", "default"):
            while tokens[i].text != ":":
                i += 1
            i += 1
        elif tokens[i + 1].text == ":":
            i += 2  # a label
        else:
            end = i
            assigns = False
            while end < function.last and tokens[end].text != ";":
                if tokens[end].text in "([" or (tokens[end].text == "{" and (assigns or word in ("return", "enum"))):
                    end = tokens[end].match
                elif tokens[end].text in "{}":
                    break  # the header of a loop that is a macro
                assigns = assigns or tokens[end].text == "="
                end += 1
            if tokens[end].text == ";":
                function.statements.append((i, end))
            i = end + 1 if tokens[end].text != "{" else end


class Finder:
    """Lists all mutants of one file."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.tokens = tokenize(text)
        self.mutants = []
        self.negated = set()  # ranges for which there is a mutant with the opposite value
        for function in find_functions(text, self.tokens):
            find_statements(self.tokens, function)
            self.visit(function)

    def line(self, position):
        return self.text.count("\n", 0, position) + 1

    def piece(self, start, end):
        return " ".join(self.text[start:end].split())

    def add(self, kind, start, end, template, parts, now, needs=""):
        edit = Edit(start, end, template, parts)
        self.mutants.append(
            Mutant(self.path, self.line(start), kind, self.piece(start, end), now, [edit], needs)
        )

    def visit(self, function):
        body = self.tokens[function.first]
        if function.returns == "void":
            self.add("empty function", body.start, body.end, "{{ if ({m}) return;", [], "return at once")
            self.mutants[-1].was = function.name
        skip = set()  # tokens in declarations of constants and in labels
        for i in range(function.first, function.last):
            if self.tokens[i].text in ("static", "case", "enum", "sizeof", "_Static_assert"):
                while self.tokens[i].text not in (";", ":", ")"):
                    skip.add(i)
                    i += 1
        for first, end in function.statements:
            self.visit_statement(function, first, end)
        self.visit_locks(function)
        for i in range(function.first + 1, function.last):
            if i not in skip:
                self.visit_token(function, i)

    def visit_statement(self, function, first, end):
        tokens = self.tokens
        start, stop = tokens[first].start, tokens[end].end
        text = self.text[start:stop]
        if tokens[first].text == "return" and end > first + 1:
            part = [(tokens[first + 1].start, tokens[end].start)]
            value = self.piece(*part[0])
            if function.returns == "bool":
                self.add("return", start, stop, "return {m} != !!({0});", part, f"return !({value});")
                self.negated.add(part[0])
            elif function.returns == "status" and value != "TETHER_OK":
                self.add("return", start, stop, "return {m} ? TETHER_OK : ({0});", part, "return TETHER_OK;")
            elif function.returns == "pointer" and value != "NULL":
                self.add("return", start, stop, "return {m} ? NULL : ({0});", part, "return NULL;")
            return
        if tokens[first].text in ("break", "continue"):
            self.add("drop", start, stop, "{{ if (!{m}) {0} }}", [(start, stop)], "")
            self.mutants[-1].edits[0].template = f"if (!{{m}}) {tokens[first].text};"
            self.mutants[-1].edits[0].parts = []
            return
        is_call = re.match(r"[A-Za-z_]\w*\s*\(", text) and tokens[first + 1].match == end - 1
        is_lock = re.match(r"pthread_mutex_(un)?lock\b|goto\b|return\b", text)
        is_assignment = re.match(
            r"\*?[A-Za-z_]\w*(\s*(->|\.|\[[^\]]*\])\s*\w*)*\s*([-+|&^]?=(?!=)|\+\+|--)", text
        )
        if (is_call or is_assignment) and not is_lock:
            self.add("drop", start, stop, "{{ if (!{m}) {{ {0} }} }}", [(start, stop)], "")
            for sign, other in (("+=", "-="), ("-=", "+=")):
                at = text.find(f" {sign} ")
                if is_assignment and at > 0:
                    parts = [(start, start + at), (start + at + 4, stop)]
                    template = f"{{{{ if ({{m}}) {{0}} {other} {{1}} else {{0}} {sign} {{1}} }}}}"
                    self.add("sign", start, stop, template, parts, text.replace(sign, other, 1))

    def visit_locks(self, function):
        """Takes a lock out of a function with all its unlocks. Only the thread sanitizer sees most of these."""
        places = {}
        for first, end in function.statements:
            text = self.text[self.tokens[first].start : self.tokens[end].end]
            m = re.fullmatch(r"pthread_mutex_(un)?lock\((.*)\);", text, re.S)
            if m:
                places.setdefault(m.group(2), []).append((m.group(1), self.tokens[first].start, self.tokens[end].end))
        text = self.text[self.tokens[function.first].start : self.tokens[function.last].end]
        for name, uses in places.items():
            if {use[0] for use in uses} != {None, "un"} or "cond_wait" in text:
                continue
            edits = [Edit(s, e, "{{ if (!{m}) {0} }}", [(s, e)]) for _, s, e in uses]
            self.mutants.append(
                Mutant(self.path, self.line(uses[0][1]), "no lock", f"{function.name}: {name}", "not locked", edits, "tsan")
            )

    def operand(self, i, step, ends):
        """The range of an operand of the operator at token i, to its left (-1) or right (1)."""
        tokens, j = self.tokens, i + step
        while True:
            word = tokens[j].text
            if word in ends or word in (CLOSE if step > 0 else OPEN):
                break
            if word in (OPEN if step > 0 else CLOSE):
                j = tokens[j].match
            j += step
        j -= step
        if j == i:
            return None
        return (tokens[i + 1].start, tokens[j].end) if step > 0 else (tokens[j].start, tokens[i - 1].end)

    def visit_token(self, function, i):
        tokens, token = self.tokens, self.tokens[i]
        word = token.text
        if word in ("if", "while") and tokens[i + 1].text == "(":
            part = (tokens[i + 1].end, tokens[tokens[i + 1].match].start)
            if self.piece(*part) not in ("true", "1"):
                self.add("negate", *part, "{m} != !!({0})", [part], f"!({self.piece(*part)})")
                self.negated.add(part)
        elif word in RELATIONS or word in ("&&", "||"):
            self.visit_binary(i)
        elif word in ("+", "-") and VALUE_ENDS.search(tokens[i - 1].text) and tokens[i - 1].text != "return":
            self.visit_sum(i)
        elif re.fullmatch(r"\d+[uUlL]*", word) and not (tokens[i - 1].text == "[" and tokens[i + 1].text == "]"):
            more = str(int(re.match(r"\d+", word).group()) + 1)
            self.add("constant", token.start, token.end, f"({{m}} ? {more} : {word})", [], more)
        elif word in ("true", "false"):
            other = "false" if word == "true" else "true"
            self.add("constant", token.start, token.end, f"({{m}} ? {other} : {word})", [], other)

    def visit_binary(self, i):
        word = self.tokens[i].text
        ends = {"&&": ENDS_LOGICAL_AND, "||": ENDS_LOGICAL_OR}.get(word, ENDS_RELATION)
        left, right = self.operand(i, -1, ends), self.operand(i, 1, ends | {word})
        if not left or not right:
            return
        both = (left[0], right[1])
        shown = self.piece(*left), self.piece(*right)
        other = RELATIONS.get(word) or {"&&": "||", "||": "&&"}[word]
        template = f"({{m}} ? {{0}} {other} {{1}} : {{0}} {word} {{1}})"
        if word in RELATIONS:
            if word in ("==", "!=") and both in self.negated:
                return
            self.add("relation", *both, template, [left, right], f"{shown[0]} {other} {shown[1]}")
            return
        self.add("and/or", *both, template, [left, right], f"{shown[0]} {other} {shown[1]}")
        clause = "({m} || ({0}))" if word == "&&" else "(!{m} && ({0}))"
        self.add("drop clause", *right, clause, [right], "")
        if self.tokens[i - 1].text != word and self.operand(i, -1, ends | {word}) == left:
            self.add("drop clause", *left, clause, [left], "")

    def visit_sum(self, i):
        left, right = self.operand(i, -1, ENDS_SUM), self.operand(i, 1, ENDS_SUM | {"+", "-"})
        if left and right:
            word = self.tokens[i].text
            other = "-" if word == "+" else "+"
            template = f"({{m}} ? {{0}} {other} {{1}} : {{0}} {word} {{1}})"
            now = f"{self.piece(*left)} {other} {self.piece(*right)}"
            self.add("sum", left[0], right[1], template, [left, right], now)


def find(path, text):
    return Finder(path, text).mutants


def fits(edit, others):
    """Whether an edit neither cuts through nor hides another one."""
    for other in others:
        apart = edit.end <= other.start or other.end <= edit.start
        inside = any(s <= edit.start and edit.end <= e for s, e in other.parts)
        outside = any(s <= other.start and other.end <= e for s, e in edit.parts)
        if not apart and not inside and not outside:
            return False
    return True


SWITCH = """\
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static int tether_mutant_chosen = -1;
static volatile unsigned char *tether_mutant_reached;
__attribute__((constructor)) static void tether_mutant_init(void)
{
    const char *chosen = getenv("TETHER_MUTANT"), *path = getenv("TETHER_MUTANT_MAP");
    if (chosen)
        tether_mutant_chosen = atoi(chosen);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        tether_mutant_reached = map;
}
__attribute__((unused, no_sanitize("thread"))) static inline _Bool tether_mutant(int id)
{
    if (tether_mutant_reached)
        tether_mutant_reached[id] = 1;
    return id == tether_mutant_chosen;
}
"""
QUIET = (
    "unused-variable unused-function unused-but-set-variable unused-parameter unused-label maybe-uninitialized "
    "uninitialized parentheses return-type type-limits bool-compare empty-body misleading-indentation int-in-bool-context "
    "bool-operation sign-compare tautological-compare logical-not-parentheses unused-value dangling-else nonnull"
).split()


def instrument(text, mutants):
    """The text with the edits of all these mutants, which must fit each other."""
    edits = [(edit, mutant.id) for mutant in mutants for edit in mutant.edits]
    # Outer edits first; of equal ranges, the later one is inside.
    edits.sort(key=lambda pair: (pair[0].start, -pair[0].end, pair[1]))

    def render(start, end, inner):
        out, at, i = [], start, 0
        while i < len(inner):
            edit, mutant_id = inner[i]
            rest = [pair for pair in inner[i + 1 :] if pair[0].start < edit.end]
            parts = [
                render(s, e, [p for p in rest if s <= p[0].start and p[0].end <= e]) for s, e in edit.parts
            ]
            out.append(text[at : edit.start])
            out.append(edit.template.format(*parts, m=f"tether_mutant({mutant_id})"))
            at = edit.end
            i += 1 + len(rest)
        out.append(text[at:end])
        return "".join(out)

    pragmas = "".join(f'#pragma GCC diagnostic ignored "-W{name}"\n' for name in QUIET)
    return pragmas + SWITCH + "#line 1\n" + render(0, len(text), edits)
