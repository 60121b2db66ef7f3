"""Every TensorRT name that source files touch, held against a real binding: python trt_api.py MODULE FILE...

The names come from the sources' syntax trees, so no list can go stale. A variable called ``trt`` (or an attribute
``.trt``) is the module of either flavour; one called ``rtx`` is TensorRT-RTX, and a function that mentions it is
checked against that alone. Types of other variables follow from annotations such as ``trt.IBuilderConfig``, from
constructors, and from the return types that the binding's docstrings state. Checked are: names, enum members,
properties (and that they can be set), and the number and names of arguments. Prints JSON: ``touched``, ``problems``.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULE_NAMES = ("trt", "rtx")


@dataclass(frozen=True)
class Module:
    module: Any


@dataclass(frozen=True)
class Class:
    cls: type


@dataclass(frozen=True)
class Instance:
    cls: type


@dataclass(frozen=True)
class Method:
    cls: type
    name: str


@dataclass
class Report:
    touched: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def check_sources(module: Any, sources: dict[str, str]) -> Report:
    """Report on sources (file name to text)."""
    report = Report()
    for name, text in sources.items():
        Checker(module, name, report).visit(ast.parse(text))
    return report


class Checker(ast.NodeVisitor):
    def __init__(self, module: Any, file: str, report: Report) -> None:
        self.module, self.file, self.report = module, file, report
        self.is_rtx = hasattr(module, "ComputeCapability")
        self.types: dict[str, Any] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not self.is_rtx and any(isinstance(part, ast.Name) and part.id == "rtx" for part in ast.walk(node)):
            return
        outer, self.types = self.types, dict(self.types)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.types.pop(argument.arg, None)
            if argument.annotation is not None and isinstance(found := self.infer(argument.annotation), Class):
                self.types[argument.arg] = Instance(found.cls)
        for statement in node.body:
            self.visit(statement)
        self.types = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if isinstance(found := self.infer(base), Class):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                        self.check_override(found.cls, part)
        for part in node.body:
            self.visit(part)

    def visit_Assign(self, node: ast.Assign) -> None:
        found = self.infer(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.types[target.id] = found
            elif isinstance(target, ast.Attribute):
                self.infer(target)
            else:
                self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        declared = self.infer(node.annotation)
        found = Instance(declared.cls) if isinstance(declared, Class) else None
        if node.value is not None:
            found = found or self.infer(node.value)
            self.infer(node.value)
        if isinstance(node.target, ast.Name):
            self.types[node.target.id] = found

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.infer(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.infer(node)

    def infer(self, node: ast.AST) -> Any:
        """What an expression is, as far as the binding tells; checks everything on the way."""
        if isinstance(node, ast.Name):
            return Module(self.module) if node.id in MODULE_NAMES else self.types.get(node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        self.generic_visit(node)
        return None

    def attribute(self, node: ast.Attribute) -> Any:
        if node.attr in MODULE_NAMES:
            return Module(self.module)
        owner = self.infer(node.value)
        if owner is None or isinstance(owner, Method):
            return None
        holder = owner.module if isinstance(owner, Module) else owner.cls
        name = f"{holder.__name__.rpartition('.')[2]}.{node.attr}" if isinstance(holder, type) else node.attr
        self.report.touched.add(name)
        try:
            value = getattr(holder, node.attr)
        except AttributeError:
            self.problem(node, f"there is no {name}")
            return None
        if isinstance(node.ctx, ast.Store) and not (isinstance(value, property) and value.fset):
            self.problem(node, f"{name} cannot be set")
        return self.kind_of(owner, node.attr, value)

    def kind_of(self, owner: Any, name: str, value: Any) -> Any:
        if isinstance(value, type):
            return Class(value)
        if isinstance(value, property):
            return self.returned(value.fget.__doc__ or "") if isinstance(owner, Instance) else None
        if isinstance(owner, Module):
            return None
        return Method(owner.cls, name) if callable(value) else Instance(type(value))

    def call(self, node: ast.Call) -> Any:
        called = self.infer(node.func)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.infer(argument)
        if isinstance(called, Class):
            self.check_call(node, called.cls, "__init__", bound=True)
            return Instance(called.cls)
        if isinstance(called, Method):
            self.check_call(node, called.cls, called.name, bound=called.name != "__init__")
            return self.returned(getattr(called.cls, called.name).__doc__ or "")
        return None

    def check_call(self, node: ast.Call, cls: type, name: str, *, bound: bool) -> None:
        signatures = signatures_of(getattr(cls, name).__doc__ or "", name)
        if not signatures or any(isinstance(argument, ast.Starred) for argument in node.args):
            return
        given = len(node.args) + bound
        keywords = {keyword.arg for keyword in node.keywords}
        for names, optional in signatures:
            rest = names[given:]
            if given <= len(names) and keywords <= set(rest) and set(rest) - keywords <= optional:
                return
        self.problem(node, f"{cls.__name__}.{name} does not take {given - bound} arguments and {sorted(keywords)}")

    def check_override(self, cls: type, node: ast.FunctionDef) -> None:
        self.report.touched.add(f"{cls.__name__}.{node.name}")
        signatures = signatures_of(getattr(getattr(cls, node.name, None), "__doc__", "") or "", node.name)
        if not any(len(names) == len(node.args.args) for names, _ in signatures):
            self.problem(node, f"{cls.__name__} calls no {node.name} with {len(node.args.args)} arguments")

    def returned(self, doc: str) -> Any:
        match = re.search(r"\) -> (.+)", doc)
        last = re.split(r"::|\.", match.group(1).strip())[-1] if match else ""
        found = getattr(self.module, last, None) or getattr(self.module, last.removeprefix("I"), None)
        return Instance(found) if isinstance(found, type) else None

    def problem(self, node: ast.AST, text: str) -> None:
        self.report.problems.append(f"{self.file}:{node.lineno}: {text}")


def signatures_of(doc: str, name: str) -> list[tuple[list[str], set[str]]]:
    """Parameter names (self included) and which of them are optional, of each overload in a pybind11 docstring."""
    found = []
    for line in doc.splitlines():
        match = re.match(rf"(?:\d+\. )?{name}\((.*)\) -> ", line)
        if match:
            parameters = split_parameters(match.group(1))
            optional = {parameter.split(":")[0].strip() for parameter in parameters if "=" in parameter}
            found.append(([parameter.split(":")[0].split("=")[0].strip() for parameter in parameters], optional))
    return found


def split_parameters(text: str) -> list[str]:
    """Split at commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


if __name__ == "__main__":
    result = check_sources(
        importlib.import_module(sys.argv[1]), {name: Path(name).read_text() for name in sys.argv[2:]}
    )
    json.dump({"touched": sorted(result.touched), "problems": result.problems}, sys.stdout)
