//! Finds types with a body in preprocessed C: which members a struct has, which names an enum.
//!
//! Only names are read here. Values, sizes and offsets are the C compiler's to say.

/// Kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Enum,
    /// A struct or a union.
    Record,
}

/// `typedef struct { … } Name;` and the like.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The names in it: an enum's constants, or the members of a record.
    pub(super) members: Vec<Member>,
}

/// A member of a record, or a constant of an enum.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    /// Its own members, if it is a record without a name of its own.
    pub(super) inside: Vec<Member>,
}

/// All types that a `typedef` defines with a body.
pub(super) fn definitions(text: &str) -> Vec<Definition> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some(start) = rest.iter().position(|token| *token == "typedef") {
        rest = &rest[start + 1..];
        let kind = match rest.first() {
            Some(&"enum") => Kind::Enum,
            Some(&("struct" | "union")) => Kind::Record,
            _ => continue,
        };
        // The tag, if there is one, stands before the brace.
        let Some(brace) = rest.iter().take(3).position(|token| *token == "{") else {
            continue;
        };
        rest = &rest[brace + 1..];
        let inside = take_body(&mut rest);
        let members = match kind {
            Kind::Enum => constants(inside),
            Kind::Record => members(inside),
        };
        if let Some(name) = rest.first() {
            found.push(Definition {
                kind,
                name: (*name).to_owned(),
                members,
            });
        }
    }
    found
}

/// Words and single signs.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

/// Takes the contents of a brace that was opened just before, and its closing brace.
fn take_body<'a, 'b>(rest: &mut &'a [&'b str]) -> &'a [&'b str] {
    let mut depth = 1;
    let end = rest
        .iter()
        .position(|token| {
            match *token {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            depth == 0
        })
        .unwrap_or(rest.len());
    let body = &rest[..end];
    *rest = rest.get(end + 1..).unwrap_or_default();
    body
}

/// The names of `A = 1, B, C`. No value of these headers has a comma inside.
fn constants(tokens: &[&str]) -> Vec<Member> {
    tokens
        .split(|token| *token == ",")
        .filter_map(|one| one.first())
        .map(|name| leaf(name))
        .collect()
}

fn leaf(name: &str) -> Member {
    Member {
        name: name.to_owned(),
        inside: Vec::new(),
    }
}

/// The members of a record. Members of an unnamed record inside it count as its own, as in C.
fn members(mut rest: &[&str]) -> Vec<Member> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|token| *token == ";" || *token == "{")
            .unwrap_or(rest.len());
        let before = &rest[..end];
        let is_body = rest.get(end) == Some(&"{");
        rest = rest.get(end + 1..).unwrap_or_default();
        if !is_body {
            found.extend(declared_names(before).map(leaf));
            continue;
        }
        let inside = members(take_body(&mut rest));
        let end = rest
            .iter()
            .position(|token| *token == ";")
            .unwrap_or(rest.len());
        match declared_names(&rest[..end]).next() {
            Some(name) => found.push(Member {
                name: name.to_owned(),
                inside,
            }),
            None => found.extend(inside),
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    found
}

/// The names that `unsigned int a, *b[4]` declares: the last word before a length.
fn declared_names<'a>(tokens: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    tokens
        .split(|token| *token == ",")
        .filter_map(|one| one.split(|token| *token == "[").next()?.last().copied())
}

#[cfg(test)]
mod tests {
    use super::{Kind, Member, definitions};

    fn shown(members: &[Member]) -> String {
        let one = |member: &Member| match member.inside.as_slice() {
            [] => member.name.clone(),
            inside => format!("{}({})", member.name, shown(inside)),
        };
        members.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn members_are_those_of_c() {
        let text = "typedef struct S_st { unsigned int a, *b[4]; const void *c;
              union { int d; struct { char e; } f; }; struct T { long g; } h[3]; } S;
            typedef enum { A = 1, B = (1 << 2), C } E;
            typedef struct U *V; typedef int I;";
        let found = definitions(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, "S");
        assert_eq!(shown(&found[0].members), "a b c d f(e) h(g)");
        assert_eq!((found[1].kind, found[1].name.as_str()), (Kind::Enum, "E"));
        assert_eq!(shown(&found[1].members), "A B C");
    }
}
