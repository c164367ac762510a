"""Programs with algebraic data types, as text."""

LIST = "type List[A] { Cons(A, List[A]), Nil }"
MAP = """
def @map[A, B](%f: fn(A) -> B, %xs: List[A]) -> List[B] {
  %r = match (%xs) {
    Nil => {
      %n = Nil;
      %n
    },
    Cons(%x, %rest) => {
      %y = %f(%x);
      %ys = @map(%f, %rest);
      %zs = Cons(%y, %ys);
      %zs
    }
  };
  %r
}
"""
PAIRS = f"""
{LIST}
type Either[A, B] {{ Left(A), Right(B) }}
{MAP}
def @main(%a: Tensor[(n, 2), float32], %b: Tensor[(n, 2), float32], %c: Tensor[(), bool])
    -> Tensor[(n, 2), float32] {{
  %e = Nil;
  %l = Cons(%b, %e);
  %m = Cons(%a, %l);
  %g = fn (%x: Tensor[(n, 2), float32]) {{
    %y = add(%x, %a);
    %y
  }};
  %q = @map(%g, %m);
  %s = if (%c) {{
    %left = Left(%a);
    %left
  }} else {{
    %right = Right(%m);
    %right
  }};
  %t = (%q, %s);
  %r = match (%t) {{
    (Cons(%u, Cons(%v, Nil)), Left(%w)) => {{
      %p = multiply(%u, %v);
      %o = subtract(%p, %w);
      %o
    }},
    (Cons(%u, _), Right(Cons(%w, _))) => {{
      %p = subtract(%u, %w);
      %o = nn.relu(%p);
      %o
    }},
    _ => {{
      %a
    }}
  }};
  %r
}}
"""
"""`main(a, b, c)`: (a + a) * (b + a) - a, or relu(a + a - a)."""

SHAPES = f"""
{LIST}
type Shape {{ Circle(Tensor[(), float32]), Box(Tensor[(2,), float32], List[Shape]) }}
def @scaled(%s: Shape, %k: Tensor[(), float32]) -> Shape {{
  %t = match (%s) {{
    Circle(%r) => {{
      %p = multiply(%r, %k);
      %c = Circle(%p);
      %c
    }},
    Box(%b, Cons(%f, %more)) => {{
      %p = multiply(%b, %k);
      %g = @scaled(%f, %k);
      %l = Cons(%g, %more);
      %c = Box(%p, %l);
      %c
    }},
    Box(_, Nil) => {{
      %s
    }}
  }};
  %t
}}

def @main(%x: Tensor[(), float32], %s: Shape) -> (Shape, Tensor[(), float32]) {{
  %t = @scaled(%s, %x);
  %n = Nil[Shape];
  %u = (%t, %n);
  %y = match (%u) {{
    (Circle(%r), _) => {{
      %r
    }},
    (Box(%b, _), Nil) => {{
      %r = sum(%b, axis=[0]);
      %r
    }},
    _ => {{
      %x
    }}
  }};
  (%t, %y)
}}
"""
