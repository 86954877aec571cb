import gzip

import numpy as np
import pytest

from simcse.errors import DataError, UsageError
from simcse.metrics import cosine_rows
from simcse.word_vectors import WordVectorAverage

VECTORS = {
    "the": [1.0, 0.0, 0.5],
    "dog": [0.0, 2.0, -1.0],
    "Dog": [9.0, 9.0, 9.0],
    "runs": [-1.5, 0.25, 0.0],
    "'s": [0.5, 0.5, 0.5],
    "s": [7.0, 7.0, 7.0],
    ".": [0.0, 0.0, 1.0],
}
LINES = [f"{word} {' '.join(map(str, numbers))}" for word, numbers in VECTORS.items()]


def write(folder, lines, name="vectors.txt"):
    path = folder / name
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.fixture
def average(tmp_path):
    return WordVectorAverage.load(write(tmp_path, LINES))


def mean(*words):
    return np.mean([VECTORS[word] for word in words], axis=0)


def test_a_sentence_is_the_mean_of_its_words(average):
    done = []
    sentences = ["the dog runs .", "dog dog the"]
    vectors = average.encode(sentences, progress=done.append)
    assert vectors.dtype == np.float32
    wanted = [mean("the", "dog", "runs", "."), mean("dog", "dog", "the")]
    np.testing.assert_allclose(vectors, wanted, atol=1e-7)
    assert done == [1, 2]
    assert (average.words, average.unknown_words) == (7, 0)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("The DOG", ["the", "dog"]),
        ("Dog", ["Dog"]),
        ("the dog's", ["the", "dog", "s"]),
        ("the dog 's", ["the", "dog", "'s"]),
        ("(the)dog.", ["the", "dog", "."]),
    ],
)
def test_a_word_without_vector_is_tried_in_lower_case_and_then_in_parts(average, sentence, words):
    np.testing.assert_allclose(average.encode([sentence])[0], mean(*words), atol=1e-7)


def test_unknown_words_are_left_out_and_counted_and_none_known_means_cosine_zero(average):
    vectors = average.encode(["the zebra dog", "zebra", ""])
    np.testing.assert_allclose(vectors[0], mean("the", "dog"), atol=1e-7)
    assert not vectors[1:].any()
    assert cosine_rows(vectors[1:], vectors[:1].repeat(2, axis=0)).tolist() == [0, 0]
    assert (average.words, average.unknown_words) == (4, 2)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec", "vectors.vec.gz"])
@pytest.mark.parametrize("header", [[], ["7 3"]])
@pytest.mark.parametrize("end", ["", " ", "\r"])
def test_files_of_glove_word2vec_and_fasttext_are_read(tmp_path, name, header, end):
    path = write(tmp_path, [*header, *(line + end for line in LINES)], name)
    vectors = WordVectorAverage.load(path).encode(list(VECTORS))
    np.testing.assert_allclose(vectors, list(VECTORS.values()), atol=1e-7)


def test_words_with_spaces_and_words_that_come_twice_are_read(tmp_path):
    path = write(tmp_path, [*LINES, ". . 1 2 3", "\u00a0 4 5 6", "dog 8 8 8"])
    average = WordVectorAverage.load(path)
    np.testing.assert_allclose(average.encode(["dog"])[0], VECTORS["dog"])


def test_a_file_longer_than_one_piece_is_read(tmp_path):
    path = write(tmp_path, [f"w{i} {i} {-i}" for i in range(9000)])
    vectors = WordVectorAverage.load(path).encode(["w0", "w8191", "w8192", "w8999"])
    assert vectors[:, 0].tolist() == [0, 8191, 8192, 8999]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cat 1 2", r"line 8 has 2 numbers after its word, but 3 are expected: restore"),
        ("cat 1 2 3 4", r"line 8 has 4 numbers after its word, but 3 are expected"),
        ("", r"line 8 has 0 numbers after its word, but 3 are expected"),
        ("cat 1 2_0 3", r"line 8: '2_0' is no number: restore or remove the line"),
        ("cat 1 nan 3", r"line 8: 'nan' is no number: restore or remove the line"),
        ("cat 1 two 3", r"line 8: 'two' is no number: restore or remove the line"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, [*LINES, line])
    with pytest.raises(DataError, match=rf"vectors.txt {message}"):
        WordVectorAverage.load(path)


def test_a_file_with_fewer_words_than_it_says_is_refused(tmp_path):
    path = write(tmp_path, ["9 3", *LINES])
    with pytest.raises(DataError, match="the vectors of 7 words, but its first line says 9: copy"):
        WordVectorAverage.load(path)


def test_an_empty_a_missing_and_a_cut_file_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"vectors.txt is empty: a line is a word and its numbers"):
        WordVectorAverage.load(write(tmp_path, []))
    with pytest.raises(DataError, match=r"line 1 has no numbers after its word: check the file"):
        WordVectorAverage.load(write(tmp_path, ["words"]))
    with pytest.raises(UsageError, match=r"there is no file of word vectors .*nowhere.txt: check"):
        WordVectorAverage.load(tmp_path / "nowhere.txt")
    path = write(tmp_path, LINES, "vectors.txt.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"vectors.txt.gz is no complete gz file .*: copy it anew"):
        WordVectorAverage.load(path)


def test_a_file_that_promises_words_and_has_none_is_named(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("0 3\n")
    with pytest.raises(DataError, match=r"vectors\.txt has no words: copy it anew"):
        WordVectorAverage.load(path)
