package measure;

/** The separators of words: the white space of ASCII. */
public final class WhiteSpace {
    /** The start of the first word at or after a position; the line's length if there is none. */
    public static int skip(String line, int position) {
        while (position < line.length() && is(line.charAt(position))) {
            position++;
        }
        return position;
    }

    /** The end of the word that starts at a position. */
    public static int next(String line, int position) {
        while (position < line.length() && !is(line.charAt(position))) {
            position++;
        }
        return position;
    }

    private static boolean is(char c) {
        return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
    }

    private WhiteSpace() {}
}
