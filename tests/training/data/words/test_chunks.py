from training.data.words import chunks as module
from training.data.words.chunks import ChunkIndex, code_points, is_space


def test_white_space_is_what_python_says_it_is():
    assert all(bool(is_space(code)) == chr(code).isspace() for code in (*range(0x3100), 0xFEFF, 0x10FFFF))


def test_chunks_are_found_again_whatever_their_characters():
    chunks = ["salt", "Salt", "säl", "😀", "\ud800", "a" * 300, *map(str, range(3000))]
    index = ChunkIndex()
    for start in (0, 6, 7, 2000):  # grows twice
        index.add(chunks[start : {0: 6, 6: 7, 7: 2000, 2000: None}[start]])
    text = "\u3000unknown\t" + "\n".join(reversed(chunks)) + " sal"
    codes = code_points(text)
    numbers, bounds = index.find(codes)
    assert numbers.tolist() == [-1, *reversed(range(len(chunks))), -1]
    assert [text[start:end] for start, end in bounds.tolist()] == text.split()
    arrays = (index._codes, index._ends, index._hashes, index._slots)
    plain = module._numbered.py_func(codes, *arrays)
    assert plain[0].tolist() == numbers.tolist() and plain[1].tolist() == bounds.tolist()


def test_a_chunk_whose_hash_is_that_of_another_is_not_taken_for_it():
    index = ChunkIndex()
    index.add(["salt", "oven", "", "bread"])
    index._hashes[:4] = index._hashes[1]
    index._slots[:] = -1
    index._slots[int(index._hashes[1]) & (len(index._slots) - 1)] = 0  # where `oven` should stand
    assert index.find(code_points("oven salt"))[0].tolist() == [-1, -1]
