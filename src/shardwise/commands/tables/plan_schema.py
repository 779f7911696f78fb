"""`plan schema`: the JSON Schema of plan files."""

from dataclasses import dataclass, field
from typing import ClassVar

from shardwise.boundary import Command, to_json
from shardwise.boundary.options import described
from shardwise.commands.base.answer import Page, Row
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.schema import SchemaAnswer
from shardwise.plans.schema import plan_schema as schema_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSchemaRequest(Command):
    """The JSON Schema of plan files, of a `kind` "train" or "serve", for editors."""

    COMMAND: ClassVar[str] = "plan schema"

    kind: str = field(
        default="train",
        kw_only=False,
        metadata=described(
            default="train",
            show_default=True,
            metavar="train|serve",
            group="What is planned",
            meaning="the kind of plan, train or serve",
        ),
    )

    def answer(self, progress: Progress | None = None) -> "PlanSchema":
        """The schema."""
        return PlanSchema(document=schema_of(self.kind))


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanSchema(SchemaAnswer):
    """The JSON Schema of plan files."""

    def table(self) -> list[Row]:
        """The keys of a plan, with what they may be."""
        return [{"key": k, **v} for k, v in self.document["properties"].items()]

    def page(self) -> Page:
        """The schema as JSON."""
        yield to_json(self.result)


plan_schema = verb("plan_schema", PlanSchemaRequest)
