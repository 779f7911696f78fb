"""A bash script as tokens: words with their quotes and expansions still in them, and operators.

An array (`A=(x y)`), `$(...)`, `${...}` and `$((...))` are part of their word. Comments and
redirections are left out, as they start no program; but a here-document and the file that a command
writes are words that begin with `HERE`, `LINE` and `INTO`, for what is written may be a script.
"""

import re
from dataclasses import dataclass

from shardwise.errors import BadRequest

_OPERATORS = (";;", "&&", "||", ";", "&", "|", "(", ")", "\n")
_CLOSES = {"(": ")", "{": "}"}
_REDIRECT = re.compile(r"(?:\d+|&)?(?:<<<|<<-?|>>|>\||>&|<&|&>>?|[<>])(?!\()")
HERE, INTO, LINE = "\0<<", "\0>", "\0="


@dataclass(frozen=True, slots=True)
class ShellToken:
    """A word as it is written, or an operator."""

    text: str
    is_word: bool = True


def tokens_of(text: str) -> list[ShellToken]:
    """The tokens of a script; BadRequest for a quote or a bracket that nothing closes."""
    return list(_Lexer(text.replace("\r\n", "\n")).tokens())


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.documents_end = 0  # where the here-documents of this line end

    def tokens(self):
        text, in_test = self.text, False
        while self.at < len(text):
            if text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] in " \t":
                self.at += 1
            elif text[self.at] == "#":
                self.at = self._line_end()
            elif text[self.at] == "\n":
                self.at = max(self.at + 1, self.documents_end)
                if not in_test:
                    yield ShellToken("\n", is_word=False)
            elif text.startswith("((", self.at) and not in_test:
                begin, self.at = self.at, self.balanced(self.at)
                yield ShellToken(text[begin : self.at])
            elif not in_test and (found := _REDIRECT.match(text, self.at)):
                if token := self._redirect(found):
                    yield ShellToken(token)
            elif operator := next((o for o in _OPERATORS if text.startswith(o, self.at)), ""):
                self.at += len(operator)
                yield ShellToken(operator, is_word=in_test)
            else:
                word = self._word(in_test)
                in_test = word == "[[" or (in_test and word != "]]")
                yield ShellToken(word)

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _redirect(self, found: re.Match[str]) -> str:
        """Past a redirection: the word that stands for it, "" where it writes and holds nothing."""
        self.at = found.end()
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        target = self._word(in_test=False)
        sign = found[0].lstrip("0123456789")
        if sign in ("<<", "<<-"):
            return HERE + self._document(target.strip("'\"\\"))
        if sign == "<<<":
            return LINE + target
        return INTO + target if sign in (">", ">>", ">|") and found[0] == sign else ""

    def _document(self, end: str) -> str:
        """The here-document up to the line `end`, the next one after this line."""
        begin = at = max(self._line_end() + 1, self.documents_end)
        while at < len(self.text):
            stop = self.text.find("\n", at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[at:stop].strip("\t")
            if line == end:
                self.documents_end = stop + 1
                return self.text[begin:at]
            at = stop + 1
        self.documents_end = at
        return self.text[begin:at]

    def _word(self, in_test: bool) -> str:
        """The word that begins here, with all that is quoted or bracketed in it."""
        begin = self.at
        while self.at < len(self.text):
            c, before = self.text[self.at], self.text[begin : self.at]
            if c == "(" and (re.fullmatch(r"\w+(\[\w*\])?\+?=", before) or before in ("<", ">")):
                self.at = self.balanced(self.at)
            elif c in " \t\n;&|()" or (c in "<>" and not in_test and before):
                if c == "(" and before[-1:] in ("?", "*", "+", "@", "!") and in_test:
                    self.at = self.balanced(self.at)
                    continue
                break
            else:
                self.at = self.past(self.at)
        if self.at == begin:  # a bracket or a sign that stands alone
            self.at += 1
        return self.text[begin : self.at]

    def past(self, at: int) -> int:
        """Where the character, the quoted text or the expansion that begins at `at` ends."""
        text, c = self.text, self.text[at]
        if c == "\\":
            return min(at + 2, len(text))
        if c == "'" or text.startswith("$'", at):
            return self._after(text.find("'", at + (1 if c == "'" else 2)), at)
        if c in '"`':
            end = at + 1
            while end < len(text) and text[end] != c:
                quoted = text[end] in "\\$" or (c == '"' and text[end] == "`")
                end = self.past(end) if quoted else end + 1
            return self._after(end if end < len(text) else -1, at)
        if c == "$" and text[at + 1 : at + 2] in ("(", "{"):
            return self.balanced(at + 1)
        return at + 1

    def balanced(self, at: int) -> int:
        """Where the bracket at `at` is closed, past what is quoted and comments in it."""
        text, opened = self.text, self.text[at]
        end = at + 1
        while end < len(text) and text[end] != _CLOSES[opened]:
            if text[end] == "#" and opened == "(" and text[end - 1] in " \t\n(":
                end = text.find("\n", end) if "\n" in text[end:] else len(text)
            elif text[end] == "(" == opened:
                end = self.balanced(end)
            else:
                end = self.past(end)
        return self._after(end if end < len(text) else -1, at)

    def _after(self, end: int, begin: int) -> int:
        if end >= 0:
            return end + 1
        line = self.text.count("\n", 0, begin) + 1
        raise BadRequest(f"line {line} of the script: {self.text[begin]} is never closed; close it")


def within(raw: str) -> list[str]:
    """The words of an array's brackets or of a command, comments and line ends left out."""
    return [token.text for token in tokens_of(raw) if token.is_word]


def past(text: str, at: int) -> int:
    """Where the quoted text or the expansion that begins at `at` ends."""
    return _Lexer(text).past(at)
