"""Options that requests about the book share."""

from shardwise.boundary.options import Option

CHAPTER = Option(about="Only this chapter, such as 5.", group="What is planned")
OTHER_VALUES = Option(
    about="Another value; may be repeated.",
    default=(),
    kind="several",
    flag="--set",
    metavar="NAME=VALUE",
)
EDITION = Option(
    about="Which edition of the book: its values, its constants.",
    default="latest",
    show_default=True,
    metavar="latest|first",
    group="What is planned",
)
EDITION_CONSTANTS = Option(about="Whose numbers for the chips.", metavar="book|seed|vendor")
