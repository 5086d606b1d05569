# %% [markdown] after="# 34 Serving" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. Nothing here takes longer than a few seconds. If you have a trained model from part 28, start the server in a terminal before the
# talk, and ask it at the end. Before you draw the picture, let the room guess at how many tokens arithmetic becomes the limit.

# %% [markdown] after="A GPT writes one token at a time. **Prefill** runs a whole prompt through the model at once, and gives the first new token. **Decode** runs" tags=["notes"]
# Say what either phase reads: all weights, once. Prefill uses each weight for every token of the prompt, decode for a single one. Then ask
# the last question, and go back to the picture: as many texts as there are tokens at its bend.

# %% [markdown] after="Draw the roofline" tags=["notes"]
# Below the slope, memory is the limit; below the flat part, arithmetic. One token alone gets a small share of what the processor could do.
# Several texts together share each read of the weights: decode in batches is nearly free, up to the bend. On a GPU, the bend is at some
# hundreds of operations for each byte.

# %% [markdown] after="Draw the roofline" tags=["slide"]
# ## A question for the room
#
# Weights are shared by all texts in a batch. What is not, and grows with every token of every text?

# %% [markdown] tags=["fragment"]
# The keys and values. For long texts they are larger than the weights, and each decode step reads all of them. So the cache decides how
# many texts fit into a batch.

# %% [markdown] after="## A worked example: one rank's part of the model" tags=["notes"]
# The split is Megatron's: whole heads on each rank. So a rank keeps keys and values of its own heads only, and the cache is split as well,
# without any communication. The answer: a summand.

# %% [markdown] after="Attend with kept keys" tags=["notes"]
# The two lines agree on each rank, and differ between ranks: summands. The second line is decode in one line: one query, and keys and
# values of all positions.

# %% [markdown] after="## Your turn: a cache in blocks" tags=["notes"]
# Compare with an operating system: a page table for each text, and no fragments between texts. What is lost is part of each text's last
# block. Ask: larger or smaller blocks? Smaller ones lose less, and need longer tables and more scattered reads.

# %% [markdown] after="Exercise: PagedCache" tags=["notes"]
# `append` is `allocate` for one more token. Point at the order: first it asks whether all blocks are there, and only then does it take any.
# A text that gets some of its blocks, and waits for the others, is the classic way into a deadlock.

# %% [markdown] after="## Your turn: prefill and decode" tags=["notes"]
# The position of a new token is its text's length, minus one, and not its place in the batch. That is the commonest mistake here.

# %% [markdown] after="Exercise: prefill, decode" tags=["notes"]
# Read decode line by line. Matrix products run over all texts at once, attention runs text by text. Two all-reduces in each layer, of one
# row for each text: a few kilobytes, so it is their latency that counts. A token's keys are written before attention, as it sees itself.

# %% [markdown] after="## Your turn: the next token" tags=["notes"]
# Take proposals. The largest logit and its word: sixteen bytes for each text, instead of 400 kB of logits.

# %% [markdown] after="Exercise: next_token" tags=["notes"]
# `argmax` takes the first of equal values, on a rank and over the ranks. So the result is the same for any number of ranks.

# %% [markdown] after="Exercise: next_token" tags=["slide-50"]
# ## A question for the room
#
# Usually, the next word is drawn, with the probabilities of the softmax. Does that need all logits?

# %% [markdown] tags=["fragment"]
# No. Add to each logit a random number of the Gumbel distribution, and the largest sum is a draw from the softmax. Each rank adds them to
# its own words, and the same two numbers are enough. The server of this part does so.

# %% [markdown] after="## Your turn: continuous batching" tags=["notes"]
# Draw three texts of different lengths on the board, first as a static batch: the short ones' places stay empty. Then say what is new:
# blocks are not reserved, so they may run out, and someone must give way. The youngest, as it loses least, and as the oldest then always
# goes on. It waits at the front of the queue.

# %% [markdown] after="Exercise: Scheduler" tags=["notes"]
# Three steps, as in the policy. The list of running texts is in the order of arrival at all times: whoever gives way comes from its end,
# and goes to the front of those that wait.

# %% [markdown] after="Draw texts and blocks over time, and the latency" tags=["notes"]
# Above, each row is a text; the hatched part is how long it waits. On the left you see the batches as vertical edges. Below, dark grey is
# memory of texts that are done already. On the right, look for a text that is orange twice: it was preempted.

# %% [markdown] after="Draw texts and blocks over time, and the latency" tags=["notes"]
# With few texts both are alike. Static batching is overloaded first, and then the time depends on how long you let it run. This is the
# picture that decides how many GPUs a service needs.

# %% [markdown] after="Draw texts and blocks over time, and the latency" tags=["slide-50"]
# ## A question for the room
#
# Someone sends a prompt of 100,000 tokens. What do all others see?

# %% [markdown] tags=["fragment"]
# A pause: the step with that prefill takes seconds, and nobody gets a token meanwhile. Prefill it piece by piece, among the others'
# decodes, or on other ranks.

# %% [markdown] after="## Your turn: hand a text over" tags=["notes"]
# Draw one rank on the left, two on the right. Only a text's own tokens travel, and each head once. Block tables are private: both sides
# have other blocks, perhaps of another size.

# %% [markdown] after="Exercise: hand_over" tags=["notes"]
# An index array in the third place makes a copy in another layout, hence `ascontiguousarray` and `order="C"`. Send and Recv would say so
# if they were missing.

# %% [markdown] after="## All together" tags=["notes"]
# All ranks run the same scheduler on the same texts, so they need no messages about what to do. The server needs one broadcast for each
# step, as only rank 0 hears from clients.

# %% [markdown] after="Serve four texts" tags=["notes"]
# At most three run at a time, so the last one waits for a place. Zoom in on one decode: six waits and transfers, two for each layer, and
# one more for the next token.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: copying takes the bytes of its blocks over the bus, twice; a prefill takes its tokens' arithmetic. Long texts of models with few
# key-value heads favour the copy. For 2: with greedy decoding, a rounding error can turn one word, and then all that follow. Some servers
# offer kernels that add in the same order for any batch, at some cost.
