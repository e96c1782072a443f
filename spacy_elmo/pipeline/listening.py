"""What an elmo pipe knows of the components around it, and what spaCy asks of one to which others listen
(`spacy.ty.ListenedToComponent`)."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, cast

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2VecListener
from thinc.api import Model

from ..errors import ElmoWarning, Warnings
from ..layers.listener import LINK, Link, Upstream, listeners_of, note_components, tell_width
from ..layers.tok2vec import check_encoders

SETS_SENTENCES = {"token.is_sent_start", "doc.sents"}


def sentence_setters(nlp: Language, name: str) -> list[str]:
    """Name the components that mark sentences before an elmo pipe.

    nlp (Language): The pipeline.
    name (str): Name of the elmo pipe.
    RETURNS (list[str]): Their names, in order.
    """
    before = nlp.pipe_names[: nlp.pipe_names.index(name)] if name in nlp.pipe_names else []
    return [other for other in before if SETS_SENTENCES & set(nlp.get_pipe_meta(other).assigns)]


class PipelineRef:
    """The pipeline that an elmo pipe is made for, which is not held on to. In a copy of the pipeline it is the copy; a pickle, or a
    copy of the pipe alone, knows none.

    nlp (Language | None): The pipeline.
    """

    def __init__(self, nlp: Language | None = None) -> None:
        self._nlp = None if nlp is None else weakref.ref(nlp)

    def has_lost(self, pipe: Any) -> bool:
        """RETURNS (bool): Whether the pipeline is known, and the pipe not in it, not even disabled."""
        nlp = None if self._nlp is None else self._nlp()
        return nlp is not None and all(other is not pipe for _, other in nlp.components)

    def __deepcopy__(self, memo: dict[int, Any]) -> PipelineRef:
        nlp = None if self._nlp is None else self._nlp()
        return PipelineRef(memo.get(id(nlp)))

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineRef, ()


class ListenedTo:
    """Keeps the listeners of an elmo pipe. spaCy links the components anew whenever the pipeline changes: it empties
    `listener_map` and calls `find_listeners` with each component after this one."""

    name: str
    listener_map: dict[str, list[Model[Any, Any]]]
    tensor_readers: set[str]
    """Components after this one that read `doc.tensor`, which a tok2vec before this one may have written."""
    pipeline: PipelineRef = PipelineRef()
    _is_told_of_removal = False

    def note_pipeline(self, nlp: Language) -> None:
        """Note in which pipeline this pipe is.

        nlp (Language): The pipeline.
        """
        self.pipeline = PipelineRef(nlp)
        note_components(nlp.components)

    def note_other_weights(self) -> None:
        """Let the listeners note on which weights they were trained, for others take their place now."""
        for listener in self.listeners:
            link: Link = listener.attrs[LINK]
            link.note_other_weights()

    def check_encoders(self, nlp: Language) -> None:
        """See that the encoders over the listeners take their width.

        nlp (Language): The pipeline.
        RAISES (ConfigError): E351 if one does not.
        """
        # Where this pipe is disabled, it may still count listeners that are gone.
        for name, component in nlp.pipeline:
            if name in self.listener_map:
                check_encoders(name, cast(Any, component).model, self._as_upstream)

    def warn_of_removal(self) -> None:
        """Warn, once, with W320 if this pipe is no longer in the pipeline that it was made for."""
        if not self._is_told_of_removal and self.pipeline.has_lost(self):
            self._is_told_of_removal = True
            _warn_of_absence(self.listening_components, self.name)

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory."""
        raise NotImplementedError

    @property
    def listeners(self) -> list[Model[Any, Any]]:
        """All listeners, in the order of their components."""
        return [listener for listeners in self.listener_map.values() for listener in listeners]

    @property
    def listening_components(self) -> list[str]:
        """Names of the components that listen."""
        return list(self.listener_map)

    def add_listener(self, listener: Model[Any, Any], component_name: str) -> None:
        """Let a listener listen to this pipe.

        listener (Model): From `spacy_elmo.ElmoListener.v1`.
        component_name (str): Name of the component that it is in.
        """
        listeners = self.listener_map.setdefault(component_name, [])
        if not any(each is listener for each in listeners):
            listeners.append(listener)
        link: Link = listener.attrs[LINK]
        link.connect(self._as_upstream, component_name)

    def remove_listener(self, listener: Model[Any, Any], component_name: str) -> bool:
        """Count a listener no more.

        listener (Model): The listener.
        component_name (str): Name of the component that it is in.
        RETURNS (bool): Whether it was there.
        """
        before = self.listener_map.get(component_name, [])
        after = [each for each in before if each is not listener]
        self.listener_map[component_name] = after
        if not after:
            del self.listener_map[component_name]
        return len(after) < len(before)

    def find_listeners(self, component: Any) -> None:
        """Add the listeners of a component that have this pipe's name, or "*", for their upstream.

        component (Any): A component of the pipeline.
        """
        model = getattr(component, "model", None)
        if not isinstance(model, Model):
            return
        name: str = component.name
        self.tensor_readers.discard(name)
        if any(isinstance(node, Tok2VecListener) for node in model.walk()):
            self.tensor_readers.add(name)
        note_components([(name, component)])
        for listener, link in listeners_of(component):
            if link.fits(self._as_upstream):
                self._take_over(link, listener, name)
                if self.has_weights:
                    # Before, saved weights may still come that have another width.
                    tell_width(model, self._as_upstream)
            elif link.upstream is self._as_upstream:
                # The pipe was renamed.
                names = {"component": name, "upstream": link.upstream_name, "name": self.name}
                warnings.warn(Warnings.W302.format(**names), ElmoWarning, stacklevel=2)
                self.add_listener(listener, name)
            elif link.upstream is not None and self.pipeline.has_lost(link.upstream):
                _warn_of_absence([name], link.upstream.name)

    def _take_over(self, link: Link, listener: Model[Any, Any], component_name: str) -> None:
        """Of several pipes that fit, the one nearest to the component is listened to."""
        previous: Any = link.upstream
        self.add_listener(listener, component_name)
        is_of_another_name = previous not in (None, self) and previous.name != self.name
        if link.upstream_name == "*" and is_of_another_name and previous.remove_listener(listener, component_name):
            names = {"component": component_name, "first": previous.name, "second": self.name}
            warnings.warn(Warnings.W300.format(**names), ElmoWarning, stacklevel=2)

    @property
    def _as_upstream(self) -> Upstream:
        return cast(Upstream, self)


def _warn_of_absence(components: list[str], upstream: str) -> None:
    message = Warnings.W320.format(components=components, upstream=upstream)
    warnings.warn(message, ElmoWarning, stacklevel=3)
