//! Reading only what is of use of lists that strangers send: what is not kept takes no memory, however much there is of it.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Something that is read and goes elsewhere, one piece at a time.
pub trait Take<'de> {
    fn take<D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error>;
}

/// Takes values as they are.
struct Values<T, F>(F, PhantomData<T>);

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Take<'de> for Values<T, F> {
    fn take<D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        T::deserialize(deserializer).map(&mut self.0)
    }
}

/// Reads a list, of which each item is given away before the next one is read; null is an empty one.
pub fn each<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    give: impl FnMut(T),
) -> Result<(), D::Error> {
    deserializer.deserialize_any(Items(&mut Values(give, PhantomData)))
}

/// The same for those who read the items by themselves.
pub fn items<'de, D: Deserializer<'de>>(deserializer: D, taker: &mut impl Take<'de>) -> Result<(), D::Error> {
    deserializer.deserialize_any(Items(taker))
}

struct Items<'t, T>(&'t mut T);

impl<'de, T: Take<'de>> Visitor<'de> for Items<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        while sequence.next_element_seed(Piece(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

struct Piece<'t, T>(&'t mut T);

impl<'de, T: Take<'de>> DeserializeSeed<'de> for Piece<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.take(deserializer)
    }
}

/// A field of somebody who wants some of them.
pub trait Fields<'de> {
    fn is_wanted(&mut self, name: &str) -> bool;

    /// Reads one that is.
    fn take<D: Deserializer<'de>>(&mut self, name: &str, deserializer: D) -> Result<(), D::Error>;
}

/// Reads an object, and over the fields that nobody wants; null is one without any.
pub fn fields<'de, D: Deserializer<'de>>(
    deserializer: D,
    wants: &mut impl Fields<'de>,
) -> Result<(), D::Error> {
    deserializer.deserialize_any(Object(wants))
}

struct Object<'f, F>(&'f mut F);

impl<'de, F: Fields<'de>> Visitor<'de> for Object<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if self.0.is_wanted(&name) {
                map.next_value_seed(Field(&mut *self.0, &name))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Field<'f, 'n, F>(&'f mut F, &'n str);

impl<'de, F: Fields<'de>> DeserializeSeed<'de> for Field<'_, '_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.take(self.1, deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Wanted(Vec<u8>);

    impl<'de> Fields<'de> for Wanted {
        fn is_wanted(&mut self, name: &str) -> bool {
            name == "a"
        }

        fn take<D: Deserializer<'de>>(&mut self, _: &str, deserializer: D) -> Result<(), D::Error> {
            each(deserializer, |number| self.0.push(number))
        }
    }

    #[test]
    fn what_is_wanted_is_read_and_the_rest_read_over() {
        let read = |text: &str| {
            let mut wanted = Wanted::default();
            fields(&mut serde_json::Deserializer::from_str(text), &mut wanted).map(|()| wanted.0)
        };
        assert_eq!(read(r#"{"b":[{"c":[]}],"a":[1,2],"d":null}"#).unwrap(), [1, 2]);
        for empty in ["null", "{}", r#"{"a":null}"#, r#"{"a":[]}"#] {
            assert!(read(empty).unwrap().is_empty(), "{empty}");
        }
        for bad in ["7", "[]", r#"{"a":7}"#, r#"{"a":["x"]}"#, r#"{"b":[}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let yaml = serde_saphyr::with_deserializer_from_str("b: {c: [x]}\na: [1, 2]\n", |reader| {
            let mut wanted = Wanted::default();
            fields(reader, &mut wanted).map(|()| wanted.0)
        });
        assert_eq!(yaml.unwrap(), [1, 2]);
    }
}
