//! Reads the modules of a crate, and the uses between its files.
//!
//! A file uses another one if it names an item of the other, in a private `use` or in a path. A re-export (`pub use`)
//! counts as no use: the reader follows it to the definition. Tests in the same file do not count.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::Tree;

/// The longest chain of re-exports; a longer one is a circle.
const REEXPORTS_MAX: usize = 16;

/// The files of a crate, and the uses between them.
pub struct Files {
    /// Their paths, relative to the root of the repository.
    pub paths: Vec<String>,
    /// For each file, the other files that it uses, with the names of the used items.
    pub uses: Vec<BTreeMap<usize, BTreeSet<String>>>,
}

impl Files {
    /// Reads the crate whose sources begin at `root`, such as `crates/log/src/lib.rs`.
    ///
    /// # Errors
    /// When a file is missing or cannot be parsed.
    pub fn read(tree: &Tree, root: &str) -> anyhow::Result<Files> {
        let (folder, _) = root.rsplit_once('/').context("a file in a folder")?;
        let mut modules = Modules::default();
        modules.read(tree, root, folder, None, String::new())?;
        Ok(modules.into_files())
    }
}

/// A module: a file, or a part of one between braces.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The names of the items defined here.
    items: BTreeSet<String>,
    imports: BTreeMap<String, Import>,
    globs: Vec<Vec<String>>,
    /// All paths in the code.
    paths: BTreeSet<Vec<String>>,
}

struct Import {
    path: Vec<String>,
    is_public: bool,
}

/// The target of a path.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item that the file with this index defines.
    Item(usize),
}

#[derive(Default)]
struct Modules {
    files: Vec<String>,
    modules: Vec<Module>,
}

impl Modules {
    /// Reads a file as a module, and all modules that it declares. `folder` holds their files.
    fn read(
        &mut self,
        tree: &Tree,
        path: &str,
        folder: &str,
        parent: Option<usize>,
        name: String,
    ) -> anyhow::Result<()> {
        let text = tree
            .text(path)
            .with_context(|| format!("{path} is missing"))?;
        let code = syn::parse_file(text).with_context(|| format!("cannot parse {path}"))?;
        let file = self.files.len();
        self.files.push(path.to_owned());
        let module = self.add(file, parent, name);
        let mut reader = Reader {
            modules: self,
            module,
            folder: folder.to_owned(),
            declared: Vec::new(),
            is_within_item: false,
        };
        reader.visit_file(&code);
        for Declared {
            parent,
            folder,
            name,
        } in reader.declared
        {
            let beside = format!("{folder}/{name}.rs");
            let within = format!("{folder}/{name}/mod.rs");
            let path = if tree.has(&beside) { beside } else { within };
            self.read(tree, &path, &format!("{folder}/{name}"), Some(parent), name)?;
        }
        Ok(())
    }

    fn add(&mut self, file: usize, parent: Option<usize>, name: String) -> usize {
        let module = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            ..Module::default()
        });
        if let Some(parent) = parent {
            self.modules[parent].children.insert(name, module);
        }
        module
    }

    /// Returns the target of a path in a module; `None` for an item of another crate.
    fn resolve(&self, module: usize, path: &[String], depth: usize) -> Option<Target> {
        if depth > REEXPORTS_MAX {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let mut place = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(module),
            "super" => Target::Module(self.modules[module].parent?),
            name => self.find(module, name, depth)?,
        };
        for name in rest {
            let Target::Module(module) = place else {
                break;
            };
            place = match name.as_str() {
                "super" => Target::Module(self.modules[module].parent?),
                "self" => place,
                name => self
                    .find(module, name, depth)
                    .unwrap_or(Target::Item(self.modules[module].file)),
            };
        }
        Some(place)
    }

    /// Returns the target of a name in a module.
    fn find(&self, module: usize, name: &str, depth: usize) -> Option<Target> {
        let here = &self.modules[module];
        if let Some(import) = here.imports.get(name) {
            // An import that leads back to itself, such as `use log::Log` beside a module `log`, names another crate.
            if import.path.first().map(String::as_str) != Some(name) {
                return self.resolve(module, &import.path, depth + 1);
            }
        }
        if let Some(child) = here.children.get(name) {
            return Some(Target::Module(*child));
        }
        if here.items.contains(name) {
            return Some(Target::Item(here.file));
        }
        here.globs.iter().find_map(|path| {
            let Target::Module(from) = self.resolve(module, path, depth + 1)? else {
                return None;
            };
            (from != module)
                .then(|| self.find(from, name, depth + 1))
                .flatten()
        })
    }

    fn into_files(self) -> Files {
        let mut uses = vec![BTreeMap::<usize, BTreeSet<String>>::new(); self.files.len()];
        for (index, module) in self.modules.iter().enumerate() {
            let imports = module.imports.values().filter(|import| !import.is_public);
            let imported = imports.map(|import| &import.path);
            for path in imported.chain(&module.paths) {
                if let Some(Target::Item(file)) = self.resolve(index, path, 0)
                    && file != module.file
                {
                    let name = path.last().cloned().unwrap_or_default();
                    uses[module.file].entry(file).or_default().insert(name);
                }
            }
        }
        Files {
            paths: self.files,
            uses,
        }
    }
}

/// Reads the items of a file into its modules.
struct Reader<'a> {
    modules: &'a mut Modules,
    /// The module whose items are read.
    module: usize,
    /// The folder of the modules that this one declares.
    folder: String,
    declared: Vec<Declared>,
    /// Whether the item is inside another item, for instance a function.
    is_within_item: bool,
}

/// A module in a file of its own.
struct Declared {
    parent: usize,
    folder: String,
    name: String,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        &mut self.modules.modules[self.module]
    }

    fn import(&mut self, tree: &syn::UseTree, mut path: Vec<String>, is_public: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, is_public);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone(), is_public);
                }
            }
            syn::UseTree::Glob(_) => self.here().globs.push(path),
            syn::UseTree::Name(name) => {
                let name = name.ident.to_string();
                let bound = match name.as_str() {
                    "self" => path.last().cloned().unwrap_or_default(),
                    _ => {
                        path.push(name.clone());
                        name
                    }
                };
                self.bind(bound, path, is_public);
            }
            syn::UseTree::Rename(rename) => {
                let name = rename.ident.to_string();
                if name != "self" {
                    path.push(name);
                }
                let bound = match rename.rename.to_string().as_str() {
                    // A trait imported for its methods: no code can name it, but it needs an entry.
                    "_" => path.join("::"),
                    name => name.to_owned(),
                };
                self.bind(bound, path, is_public);
            }
        }
    }

    fn bind(&mut self, name: String, path: Vec<String>, is_public: bool) {
        self.here().imports.insert(name, Import { path, is_public });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        if !self.is_within_item
            && let Some(name) = name_of(item)
        {
            self.here().items.insert(name);
        }
        match item {
            syn::Item::Mod(item) => {
                let name = item.ident.to_string();
                let Some((_, items)) = &item.content else {
                    self.declared.push(Declared {
                        parent: self.module,
                        folder: self.folder.clone(),
                        name,
                    });
                    return;
                };
                let inside = format!("{}/{name}", self.folder);
                let folder = std::mem::replace(&mut self.folder, inside);
                let (outer, file) = (self.module, self.here().file);
                self.module = self.modules.add(file, Some(outer), name);
                items.iter().for_each(|item| self.visit_item(item));
                self.module = outer;
                self.folder = folder;
            }
            syn::Item::Use(item) => {
                let is_public = !matches!(item.vis, syn::Visibility::Inherited);
                self.import(&item.tree, Vec::new(), is_public);
            }
            item => {
                let outer = std::mem::replace(&mut self.is_within_item, true);
                visit::visit_item(self, item);
                self.is_within_item = outer;
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string());
        let names = names.collect();
        self.here().paths.insert(names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        let mut paths = Vec::new();
        paths_in(call.tokens.clone(), &mut paths);
        self.here().paths.extend(paths);
    }
}

/// The paths in a macro's arguments: names with `::` between them.
fn paths_in(tokens: TokenStream, found: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                if colons != 2 {
                    found.push(std::mem::take(&mut path));
                }
                path.push(name.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                paths_in(group.stream(), found);
                colons = 0;
            }
            _ => colons = 0,
        }
    }
    found.push(path);
    found.retain(|path| !path.is_empty());
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let mut paths = Vec::new();
        paths_in(list.tokens.clone(), &mut paths);
        let has = |name: &str| paths.iter().any(|path| path == &[name]);
        list.path.is_ident("cfg") && has("test") && !has("not")
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the uses between the files of a crate, each in the form `from → to: names`.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let files = Files::read(&Tree::of(files), "src/lib.rs").unwrap();
        let mut found = Vec::new();
        for (from, uses) in files.uses.iter().enumerate() {
            for (to, names) in uses {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let (from, to) = (&files.paths[from], &files.paths[*to]);
                found.push(format!("{from} → {to}: {}", names.join(", ")));
            }
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn imports_and_paths_lead_to_the_files_that_define_them() {
        let root = "mod a; mod b; pub use a::Made;";
        let a = "pub struct Made; pub fn make() {}";
        for b in [
            "use crate::a::Made;",
            "use crate::Made;",
            "use super::{Made};",
            "fn f() -> crate::a::Made {}",
            "use crate::a; fn f() { a::Made; }",
            "mod inner { use super::super::Made; }",
            "use crate::a::*; struct Other(Made);",
            "fn f() { println!(\"{}\", crate::a::Made) }",
        ] {
            let files = [("src/lib.rs", root), ("src/a.rs", a), ("src/b/mod.rs", b)];
            check(&files, &["src/b/mod.rs → src/a.rs: Made"]);
        }
    }

    #[test]
    fn re_exports_declarations_and_tests_do_not_count_as_uses() {
        let files = [
            (
                "src/lib.rs",
                "pub mod a; mod b; pub use b::B; #[cfg(test)] mod tests;",
            ),
            ("src/a.rs", "#[cfg(test)] mod tests { use crate::B; }"),
            ("src/b.rs", "pub struct B; #[cfg(test)] use crate::a;"),
        ];
        check(&files, &[]);
    }

    #[test]
    fn a_re_export_that_the_code_uses_is_a_use() {
        let files = [
            ("src/lib.rs", "mod a; pub use self::a::A; pub fn f(_: A) {}"),
            ("src/a.rs", "pub struct A; use crate::f as _;"),
        ];
        let expected = ["src/lib.rs → src/a.rs: A", "src/a.rs → src/lib.rs: f"];
        check(&files, &expected);
    }

    #[test]
    fn modules_of_modules_lie_in_their_folders() {
        let files = [
            ("src/lib.rs", "mod a; mod inner { mod c; }"),
            ("src/a.rs", "mod b; use self::b::B;"),
            ("src/a/b.rs", "pub struct B;"),
            ("src/inner/c.rs", "use crate::a::b::B;"),
        ];
        let expected = ["src/a.rs → src/a/b.rs: B", "src/inner/c.rs → src/a/b.rs: B"];
        check(&files, &expected);
    }
}
