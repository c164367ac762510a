"""Types and functions that programs on data begin with, in the program's own language: those of
Relay's prelude (J. Roesch et al., Relay: a high-level compiler for deep learning, 2019).

All functions are total: where Relay's `hd` of an empty list fails, `head` gives an `Option`.
"""

from __future__ import annotations

from functools import cache

from compiler.ir.expr import IRModule
from compiler.ir.parser import parse


@cache
def prelude() -> IRModule:
    """The module of these types and functions, without a `main`; `compiler.parse(text,
    using=compiler.prelude())` lets a program use them."""
    return parse(_TEXT)


_TEXT = """
type Option[A] { Some(A), None }
type List[A] { Cons(A, List[A]), Nil }
type Tree[A] { Rose(A, List[Tree[A]]) }

def @get_or[A](%value: Option[A], %otherwise: A) -> A {
  %r = match (%value) { Some(%x) => { %x }, None => { %otherwise } };
  %r
}

def @map_option[A, B](%f: fn(A) -> B, %value: Option[A]) -> Option[B] {
  %r = match (%value) {
    Some(%x) => { %y = %f(%x); %o = Some(%y); %o },
    None => { %o = None; %o }
  };
  %r
}

def @compose[A, B, C](%f: fn(B) -> C, %g: fn(A) -> B) -> fn(A) -> C {
  %h = fn (%x: A) { %y = %g(%x); %z = %f(%y); %z };
  %h
}

def @iterate[A](%f: fn(A) -> A, %times: Tensor[(), int64], %x: A) -> A {
  %go = greater(%times, 0int64);
  %r = if (%go) {
    %less = subtract(%times, 1int64);
    %y = %f(%x);
    %z = @iterate(%f, %less, %y);
    %z
  } else { %x };
  %r
}

def @length[A](%xs: List[A]) -> Tensor[(), int64] {
  %f = fn (%count: Tensor[(), int64], %x: A) { %more = add(%count, 1int64); %more };
  %r = @foldl(%f, 0int64, %xs);
  %r
}

def @sum(%xs: List[Tensor[(), int64]]) -> Tensor[(), int64] {
  %f = fn (%sum: Tensor[(), int64], %x: Tensor[(), int64]) { %more = add(%sum, %x); %more };
  %r = @foldl(%f, 0int64, %xs);
  %r
}

def @head[A](%xs: List[A]) -> Option[A] {
  %r = match (%xs) {
    Cons(%x, _) => { %o = Some(%x); %o },
    Nil => { %o = None; %o }
  };
  %r
}

def @tail[A](%xs: List[A]) -> List[A] {
  %r = match (%xs) { Cons(_, %rest) => { %rest }, Nil => { %xs } };
  %r
}

def @nth[A](%xs: List[A], %n: Tensor[(), int64]) -> Option[A] {
  %left = @drop(%xs, %n);
  %inside = greater_equal(%n, 0int64);
  %r = if (%inside) { %x = @head(%left); %x } else { %o = None; %o };
  %r
}

def @update[A](%xs: List[A], %n: Tensor[(), int64], %x: A) -> List[A] {
  %here = equal(%n, 0int64);
  %r = match (%xs) {
    Nil => { %xs },
    Cons(%y, %rest) => {
      %s = if (%here) {
        %new = Cons(%x, %rest);
        %new
      } else {
        %less = subtract(%n, 1int64);
        %more = @update(%rest, %less, %x);
        %new = Cons(%y, %more);
        %new
      };
      %s
    }
  };
  %r
}

def @take[A](%xs: List[A], %n: Tensor[(), int64]) -> List[A] {
  %go = greater(%n, 0int64);
  %r = if (%go) {
    %s = match (%xs) {
      Nil => { %xs },
      Cons(%x, %rest) => {
        %less = subtract(%n, 1int64);
        %more = @take(%rest, %less);
        %new = Cons(%x, %more);
        %new
      }
    };
    %s
  } else { %none = Nil; %none };
  %r
}

def @drop[A](%xs: List[A], %n: Tensor[(), int64]) -> List[A] {
  %go = greater(%n, 0int64);
  %r = if (%go) {
    %s = match (%xs) {
      Nil => { %xs },
      Cons(_, %rest) => {
        %less = subtract(%n, 1int64);
        %left = @drop(%rest, %less);
        %left
      }
    };
    %s
  } else { %xs };
  %r
}

def @map[A, B](%f: fn(A) -> B, %xs: List[A]) -> List[B] {
  %r = match (%xs) {
    Nil => { %none = Nil; %none },
    Cons(%x, %rest) => { %y = %f(%x); %ys = @map(%f, %rest); %new = Cons(%y, %ys); %new }
  };
  %r
}

def @foldl[A, B](%f: fn(A, B) -> A, %x: A, %ys: List[B]) -> A {
  %r = match (%ys) {
    Nil => { %x },
    Cons(%y, %rest) => { %next = %f(%x, %y); %z = @foldl(%f, %next, %rest); %z }
  };
  %r
}

def @foldr[A, B](%f: fn(A, B) -> B, %y: B, %xs: List[A]) -> B {
  %r = match (%xs) {
    Nil => { %y },
    Cons(%x, %rest) => { %z = @foldr(%f, %y, %rest); %next = %f(%x, %z); %next }
  };
  %r
}

def @foldr1[A](%f: fn(A, A) -> A, %xs: List[A]) -> Option[A] {
  %r = match (%xs) {
    Nil => { %o = None; %o },
    Cons(%x, Nil) => { %o = Some(%x); %o },
    Cons(%x, %rest) => {
      %z = @foldr1(%f, %rest);
      %g = fn (%y: A) { %next = %f(%x, %y); %next };
      %o = @map_option(%g, %z);
      %o
    }
  };
  %r
}

def @concat[A](%xs: List[A], %ys: List[A]) -> List[A] {
  %r = match (%xs) {
    Nil => { %ys },
    Cons(%x, %rest) => { %more = @concat(%rest, %ys); %new = Cons(%x, %more); %new }
  };
  %r
}

def @append[A](%xs: List[A], %x: A) -> List[A] {
  %none = Nil;
  %last = Cons(%x, %none);
  %r = @concat(%xs, %last);
  %r
}

def @flatten[A](%xss: List[List[A]]) -> List[A] {
  %f = fn (%xs: List[A], %ys: List[A]) { %both = @concat(%xs, %ys); %both };
  %none = Nil;
  %r = @foldr(%f, %none, %xss);
  %r
}

def @reverse[A](%xs: List[A]) -> List[A] {
  %f = fn (%done: List[A], %x: A) { %more = Cons(%x, %done); %more };
  %none = Nil;
  %r = @foldl(%f, %none, %xs);
  %r
}

def @filter[A](%f: fn(A) -> Tensor[(), bool], %xs: List[A]) -> List[A] {
  %r = match (%xs) {
    Nil => { %xs },
    Cons(%x, %rest) => {
      %more = @filter(%f, %rest);
      %stays = %f(%x);
      %s = if (%stays) { %new = Cons(%x, %more); %new } else { %more };
      %s
    }
  };
  %r
}

def @zip[A, B](%xs: List[A], %ys: List[B]) -> List[(A, B)] {
  %both = (%xs, %ys);
  %r = match (%both) {
    (Cons(%x, %others), Cons(%y, %rest)) => {
      %pair = (%x, %y);
      %more = @zip(%others, %rest);
      %new = Cons(%pair, %more);
      %new
    },
    _ => { %none = Nil; %none }
  };
  %r
}

def @map_accuml[A, B, C](%f: fn(A, B) -> (A, C), %x: A, %ys: List[B]) -> (A, List[C]) {
  %r = match (%ys) {
    Nil => { %none = Nil; %end = (%x, %none); %end },
    Cons(%y, %rest) => {
      %step = %f(%x, %y);
      %next = %step.0;
      %z = %step.1;
      %left = @map_accuml(%f, %next, %rest);
      %last = %left.0;
      %zs = %left.1;
      %all = Cons(%z, %zs);
      %end = (%last, %all);
      %end
    }
  };
  %r
}

def @map_accumr[A, B, C](%f: fn(A, B) -> (A, C), %x: A, %ys: List[B]) -> (A, List[C]) {
  %r = match (%ys) {
    Nil => { %none = Nil; %end = (%x, %none); %end },
    Cons(%y, %rest) => {
      %left = @map_accumr(%f, %x, %rest);
      %next = %left.0;
      %zs = %left.1;
      %step = %f(%next, %y);
      %last = %step.0;
      %z = %step.1;
      %all = Cons(%z, %zs);
      %end = (%last, %all);
      %end
    }
  };
  %r
}

def @unfoldr[A, B](%f: fn(A) -> Option[(A, B)], %x: A) -> List[B] {
  %step = %f(%x);
  %r = match (%step) {
    None => { %none = Nil; %none },
    Some((%next, %y)) => { %more = @unfoldr(%f, %next); %new = Cons(%y, %more); %new }
  };
  %r
}

def @unfoldl[A, B](%f: fn(A) -> Option[(A, B)], %x: A) -> List[B] {
  %forwards = @unfoldr(%f, %x);
  %r = @reverse(%forwards);
  %r
}

def @tmap[A, B](%f: fn(A) -> B, %tree: Tree[A]) -> Tree[B] {
  %r = match (%tree) {
    Rose(%x, %children) => {
      %g = fn (%t: Tree[A]) { %mapped = @tmap(%f, %t); %mapped };
      %y = %f(%x);
      %ys = @map(%g, %children);
      %new = Rose(%y, %ys);
      %new
    }
  };
  %r
}

def @tfold[A, B](%f: fn(A, List[B]) -> B, %tree: Tree[A]) -> B {
  %r = match (%tree) {
    Rose(%x, %children) => {
      %g = fn (%t: Tree[A]) { %folded = @tfold(%f, %t); %folded };
      %ys = @map(%g, %children);
      %y = %f(%x, %ys);
      %y
    }
  };
  %r
}

def @size[A](%tree: Tree[A]) -> Tensor[(), int64] {
  %f = fn (%x: A, %sizes: List[Tensor[(), int64]]) { %s = @sum(%sizes); %r = add(%s, 1int64); %r };
  %r = @tfold(%f, %tree);
  %r
}

def @items[A](%tree: Tree[A]) -> List[A] {
  %f = fn (%x: A, %below: List[List[A]]) { %all = @flatten(%below); %r = Cons(%x, %all); %r };
  %r = @tfold(%f, %tree);
  %r
}
"""
