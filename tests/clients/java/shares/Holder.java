package shares;

/** A process that takes records of a share group, says so, and keeps them until it is killed. */
public final class Holder {
    private Holder() {}

    public static void main(String[] arguments) throws InterruptedException {
        try (var member = Shares.member(arguments[0], "explicit")) {
            int count = 0;
            while (count < Integer.parseInt(arguments[1])) {
                count += member.poll(Shares.SHORT).count();
            }
            System.out.println("holds " + count);
            Thread.sleep(Long.MAX_VALUE);
        }
    }
}
